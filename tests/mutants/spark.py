"""Mutants of Spark: source, sink and pipelines."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="unfinished-offsets-kept",
        promise="a pipeline starts again after its driver died before the first batch",
        file="headwater/spark/pipeline/writers.py",
        old="        self.checkpoint(sink).clean()\n",
        new="",
        killers=("tests/spark/test_checkpoint.py -k pipeline_cleans",),
    ),
    Mutant(
        name="begun-checkpoint-cleaned",
        promise="a checkpoint whose query has begun is left as it is",
        file="headwater/spark/pipeline/checkpoint.py",
        old="        if any(file.name.isdecimal() for files in names.values() for file in files):\n",
        new="        if False:\n",
        killers=("tests/spark/test_checkpoint.py -k batch_has_begun",),
    ),
    Mutant(
        name="batches-written-again",
        promise="a batch of a stream that was published before is not published again",
        file="headwater/spark/sink.py",
        old=(
            "            store.transaction(writer=name, sequence=batchId, owner=owner,"
            " takeover=options.takeover) as block,\n"
        ),
        new="            store.transaction() as block,\n",
        killers=("tests/spark/test_write_stream.py",),
    ),
    Mutant(
        name="aborted-rows-kept",
        promise="a failed write of a DataFrame publishes nothing and leaves nothing staged",
        file="headwater/spark/sink.py",
        old="            store.drop(message.staged for message in _written(messages))\n",
        new="            pass\n",
        killers=("tests/spark/test_write.py -k gives_up",),
    ),
    Mutant(
        name="overwrite-appends",
        promise="overwriting a topic is refused",
        file="headwater/spark/sink.py",
        old="    if overwrite:\n        raise InvalidConfiguration('a topic can only be appended to: use mode(",
        new="    if not rows:\n        raise InvalidConfiguration('a topic can only be appended to: use mode(",
        killers=("tests/spark/test_write.py",),
    ),
    Mutant(
        name="unknown-partitions-read",
        promise="positions in partitions that do not exist are refused",
        file="headwater/spark/reader.py",
        old='    if beyond:\n        raise InvalidConfiguration(f"topic',
        new='    if not partitions:\n        raise InvalidConfiguration(f"topic',
        killers=("tests/spark/test_batch.py", "tests/spark/test_options.py"),
    ),
    Mutant(
        name="lost-records-passed-over",
        promise="a batch that asks for removed records says so",
        file="headwater/spark/reader.py",
        old="            lose(DataLost(topic.name, number, error.offset, first, why), options)\n",
        new="            pass\n",
        killers=("tests/spark/test_batch.py", "tests/spark/test_stream.py"),
    ),
)
