"""The format of a log: frames, their encoding, schemas, and the checks of frames from outside."""
