"""The cluster that tests share, for those that look into its brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.backends import SharedCluster


@pytest.fixture
def cluster(shared_cluster: SharedCluster) -> Iterator[SharedCluster]:
    """The shared cluster, empty again after each test."""
    yield shared_cluster
    shared_cluster.clear()
