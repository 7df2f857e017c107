"""Jobs: what `hw spark` does with whole topics, in many tasks: archive them, compact them, replay them.

Nothing is imported here. Spark's workers import only the module whose function they run.
"""
