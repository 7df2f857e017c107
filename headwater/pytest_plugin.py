"""The plugin of pytest: fixtures that give a test a store or a broker of its own.

pytest finds it by itself where Headwater is installed. It imports nothing before a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from headwater.streams.store import Store


@pytest.fixture
def headwater_store(tmp_path: Path) -> Iterator[Store]:
    """A store in a directory of the test's own, closed when the test ends. Other processes may open `str(store)`."""
    from headwater.opening import open_store

    with open_store(tmp_path / "headwater") as store:
        yield store


@pytest.fixture
def headwater_broker(tmp_path: Path) -> Iterator[str]:
    """The address of a broker of the test's own, such as `hw://127.0.0.1:40123`, stopped when the test ends."""
    pytest.importorskip("grpc", reason="the broker needs it: pip install 'headwater[broker]'")
    from headwater.broker import Broker
    from headwater.core.address import Address
    from headwater.core.config import BrokerConfig
    from headwater.embedded.directory_store import DirectoryStore

    with (
        DirectoryStore(tmp_path / "headwater-broker", exclusive=True) as store,
        Broker(store, BrokerConfig(drain_timeout=0), listen=Address("127.0.0.1", 0)) as broker,
    ):
        yield f"hw://{broker.address}"
