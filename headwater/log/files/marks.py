"""Marks: small files that hold one offset each and outlive the state page.

`start` says where the log begins, `truncate` that a truncation has been decided and must be carried out. Both are put
in place by a rename before the files they speak of are touched.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from crc32c import crc32c

from headwater.core.errors import Damaged
from headwater.log.files.disk import read_plain

START_FILE: Final = "start"
TRUNCATE_FILE: Final = "truncate"
_LAYOUT = struct.Struct("<8sq")
_MAGIC: Final = {START_FILE: b"HWSTART1", TRUNCATE_FILE: b"HWTRUNC1"}
"""One for each, so that no copy of the one is ever taken for the other."""


def pack_mark(name: str, offset: int) -> bytes:
    """The content of the mark `name`."""
    content = _LAYOUT.pack(_MAGIC[name], offset)
    checksum: int = crc32c(content)
    return content + checksum.to_bytes(4, "little")


def read_mark(directory: Path, name: str) -> int | None:
    """The offset in the mark `name`, None when there is no such file."""
    path = directory / name
    try:
        content = read_plain(path, limit=_LAYOUT.size + 5)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"a mark cannot be read: {error}", file=path) from error
    body = content[: _LAYOUT.size]
    if (
        len(content) != _LAYOUT.size + 4
        or content[:8] != _MAGIC[name]
        or crc32c(body) != int.from_bytes(content[-4:], "little")
    ):
        raise Damaged("a mark does not match its checksum", file=path)
    offset: int = _LAYOUT.unpack(body)[1]
    return offset
