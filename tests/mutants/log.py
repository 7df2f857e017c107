"""Mutants of one partition's log."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="append-unsynced",
        promise='with sync="always" an append returns after the device has it',
        file="headwater/log/writer.py",
        old="""        if mode == "always":
            return True
        return mode""",
        new="        return mode",
        killers=("tests/test_sync_modes.py", "power_loss"),
    ),
    Mutant(
        name="swap-without-directory-sync",
        promise="a key that compaction removed does not come back after a power loss",
        file="headwater/log/writer.py",
        old="""            self.disk.rename(temporary, old.path)
            self.disk.sync_directory(self.directory)
""",
        new="""            self.disk.rename(temporary, old.path)
""",
        killers=("directory_sync", "power_loss"),
    ),
)
