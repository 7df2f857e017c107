"""Mutants: small changes, each of which takes one promise away. A test or a proof must notice every one of them.

`python -m tests.mutants` makes each change in a copy of the tree and runs what must notice it. A mutant that survives
is a promise that nothing guards. To add one, append a `Mutant` to the list of its area: `log`, `store`, `broker`,
`cluster`, `console`, `spark` or `security`.
"""

from tests.mutants.mutant import Mutant

__all__ = ["Mutant"]
