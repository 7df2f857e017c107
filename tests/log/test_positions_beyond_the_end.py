"""A power loss can take back what was not synced, and with it the records that a group was done with."""

from __future__ import annotations

import shutil
from pathlib import Path

import headwater as hw


def produce(path: Path, values: list[bytes]) -> None:
    with hw.open(path) as store, store.producer("orders") as producer:
        for value in values:
            producer.send(value)


def consume(path: Path) -> list[bytes]:
    with hw.open(path) as store, store.consumer("orders", group="billing") as consumer:
        records = consumer.poll(1000)
        for record in records:
            consumer.ack(record)
        return [record.value for record in records]


def test_a_group_does_not_pass_over_records_that_come_in_the_place_of_lost_ones(tmp_path: Path) -> None:
    path, before = tmp_path / "store", tmp_path / "before"
    with hw.open(path) as store:
        store.create_topic("orders", sync="never")
    produce(path, [b"old %d" % number for number in range(5)])
    shutil.copytree(path / "orders" / "0", before)
    produce(path, [b"lost %d" % number for number in range(5)])
    assert len(consume(path)) == 10

    shutil.rmtree(path / "orders" / "0")
    shutil.move(before, path / "orders" / "0")
    new = [b"new %d" % number for number in range(8)]
    produce(path, new)

    assert consume(path) == new
