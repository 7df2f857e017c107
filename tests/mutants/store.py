"""Mutants of stores: topics, producers, consumers, groups, transactions and stewards."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS: tuple[Mutant, ...] = ()
