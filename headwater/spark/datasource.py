"""The data source `headwater`: gives Spark readers and writers of topics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from headwater.spark.worker import begin

if TYPE_CHECKING:
    from headwater.spark.options import SourceOptions


class HeadwaterSource(DataSource):
    """Topics of a store as tables and streams: `spark.read.format("headwater").option("store", …)`.

    An instance is made for every use, from options that Spark has put in lower case. Options are checked when it is
    known whether to read or to write, and what is needed for that is imported then.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name that users pass to `format`."""
        return "headwater"

    def schema(self) -> StructType:
        """The columns of what the options name, for reading."""
        from headwater.spark.reader import describe

        return describe(self._source_options())

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the records that are there now."""
        from headwater.spark.reader import HeadwaterReader

        return HeadwaterReader(self._source_options(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - named by Spark
        """Return a reader of the records that are there and of those that come."""
        begin()
        from headwater.spark.stream import HeadwaterStreamReader

        return HeadwaterStreamReader(self._source_options(), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that appends the rows of a DataFrame."""
        from headwater.spark.sink import batch_writer

        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - as above
        """Return a writer that appends the rows of a stream, each exactly once."""
        from headwater.spark.sink import stream_writer

        return stream_writer(self.options, schema, overwrite)

    def _source_options(self) -> SourceOptions:
        from headwater.spark.options import SourceOptions

        return SourceOptions.parse(self.options)
