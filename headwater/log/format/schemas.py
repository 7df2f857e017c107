"""The schemas of a log: immutable files named by the hash of their content.

A schema is durable before the first frame that names it, so a frame in the log can always be read. The raw schema
needs no file.
"""

from __future__ import annotations

from pathlib import Path

from headwater.core.errors import OpenFailed, SchemaError, UnknownSchema, WriteFailed
from headwater.core.schema import RAW, Schema
from headwater.log.files.disk import REAL_DISK, Disk, read_plain


class Schemas:
    """Schemas by id, in memory only: for logs in memory, and the base of those on disk."""

    def __init__(self) -> None:
        self._known: dict[int, Schema] = {RAW.id: RAW}
        self._durable = {RAW.id}

    def get(self, schema_id: int) -> Schema:
        """The schema with this id; raises UnknownSchema."""
        schema = self._known.get(schema_id)
        if schema is None:
            schema = self._known[schema_id] = self._load(schema_id)
        return schema

    def put(self, schema: Schema) -> None:
        """Make the schema known, for good; doing it again costs nothing."""
        if schema.id not in self._durable:
            self._store(schema)
            self._known[schema.id] = schema
            self._durable.add(schema.id)

    def _load(self, schema_id: int) -> Schema:
        raise UnknownSchema(schema_id, "memory")

    def _store(self, schema: Schema) -> None:
        """Nothing to store: memory is all there is."""


class SchemaDirectory(Schemas):
    """Schemas in a directory, one immutable file each."""

    def __init__(self, directory: Path, disk: Disk = REAL_DISK) -> None:
        super().__init__()
        self._directory = directory
        self._disk = disk

    def _path(self, schema_id: int) -> Path:
        return self._directory / f"{schema_id:016x}.arrow"

    def _load(self, schema_id: int) -> Schema:
        try:
            schema = Schema.deserialize(read_plain(self._path(schema_id)))
        except (FileNotFoundError, SchemaError):
            raise UnknownSchema(schema_id, str(self._directory)) from None
        except OSError as error:
            raise OpenFailed(self._directory, error) from error
        if schema.id != schema_id:
            raise UnknownSchema(schema_id, f"{self._directory}, whose file for it is damaged")
        return schema

    def _store(self, schema: Schema) -> None:
        """A file that is there already may be of a process that died before it was durable, so it is written again."""
        try:
            self._disk.make_directory(self._directory)
            self._disk.replace(self._path(schema.id), schema.serialize())
            self._disk.sync_directory(self._directory)
            self._disk.sync_directory(self._directory.parent)
        except OSError as error:
            raise WriteFailed(self._directory, error) from error
