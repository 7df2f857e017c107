"""A frame of another log that a user stored inside a value is never taken for one of the log's own."""

from __future__ import annotations

from headwater.log import encode
from headwater.log.files.segment import SEGMENT_HEADER_BYTES
from headwater.log.format.frame import MAGIC
from headwater.log.recover.report import Damage
from tests.support.backends import OpenDirectory


def test_a_stored_frame_of_another_log_is_not_served_when_damage_lets_a_reader_search(
    open_directory: OpenDirectory,
) -> None:
    other = open_directory(name="other")
    for value in (b"first", b"foreign"):
        other.append(encode([value]))
    content = (other.path / f"{0:020d}.log").read_bytes()
    foreign = content[content.index(MAGIC, SEGMENT_HEADER_BYTES + 8) :]
    assert b"foreign" in foreign

    partition = open_directory()
    hidden = b"\0".join([foreign] * 8)  # at each distance from the places where a frame can begin
    for value in (b"before", hidden, b"after"):
        partition.append(encode([value]))
    log = partition.path / f"{0:020d}.log"
    content = log.read_bytes()
    damaged = content.index(MAGIC, SEGMENT_HEADER_BYTES + 8)
    log.write_bytes(content[:damaged] + b"\0" + content[damaged + 1 :])

    met: list[Damage] = []
    assert [record.value for record in partition.records(on_damage=met.append)] == [b"before", b"after"]
    assert [(damage.offset, damage.next_offset) for damage in met] == [(1, 2)]
