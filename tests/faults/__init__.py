"""Fault proofs: a fault is inflicted, everything is read back, and what the log promised is checked.

`python -m tests.faults NAME` runs one proof, `all` runs them all. A proof is a module of this package:

    @proof(row=3, title="torn tail: the last frame cut at each byte", runs=1000, quick=50)
    def torn_tail(run: Run) -> Iterator[Violation]: ...

It yields what it finds wrong, and nothing when all is well. Whatever it leaves to chance comes from
`run.random`, so that a seed and a run number bring a finding back.
"""

from tests.faults.proof import Proof, Run, Unavailable, proof
from tests.faults.violation import Kind, Violation

__all__ = ["Kind", "Proof", "Run", "Unavailable", "Violation", "proof"]
