"""Benchmarks: Headwater measured beside its peers, on the same machine, in the same minutes.

`python -m benchmarks NAME` runs one. A benchmark is a module of this package with

    def run(quick: bool, scratch: Path) -> Iterator[Row]: ...

that yields each row as soon as it is measured. `scratch` is an empty directory on the file system that the
report names; `quick` asks for a run of seconds, to see that the benchmark works. Peers are imported within
`run`, so that one that is not installed costs its rows their peer and nothing more.
"""
