"""Streams of files, Arrow files among them."""

from __future__ import annotations

from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from icestream.api.columns import reason_of, reasons_alone
from icestream.core.errors import DefinitionError
from icestream.core.text_errors import TYPO, guess
from icestream.runtime.ingest.arrow import rows_of_paths
from icestream.runtime.spark.arrow_types import to_arrow_schema

#: columns of Spark's binary files
_BINARY = "path string, modificationTime timestamp, length bigint, content binary"

#: options of Spark's reader of files that change which rows there are, or when
_OPTIONS = (
    "maxFilesPerTrigger",
    "maxBytesPerTrigger",
    "maxFileAge",
    "latestFirst",
    "fileNameOnly",
    "cleanSource",
    "sourceArchiveDir",
    "pathGlobFilter",
    "recursiveFileLookup",
    "basePath",
    "ignoreCorruptFiles",
    "ignoreMissingFiles",
    "mergeSchema",
    "columnNameOfCorruptRecord",
    "delimiter",
    "encoding",
    "header",
    "multiLine",
    "nullValue",
    "quote",
    "timestampFormat",
    "timestampNTZFormat",
    "dateFormat",
    "wholetext",
)

FORMATS = ("arrow", "csv", "json", "orc", "parquet", "text")


def files(
    spark: SparkSession,
    path: str,
    format: str = "parquet",
    *,
    schema: StructType | str,
    **options: Any,
) -> DataFrame:
    """Read the files of a folder as a stream, including files that are added later.

    Args:
        spark: the session.
        path: the folder.
        format: `arrow` for files of `pyarrow.ipc.new_file`, or a file format of Spark.
        schema: columns and types, as in `spark.readStream.schema`.
        options: options of Spark's reader, such as `maxFilesPerTrigger`.

    Examples:
        >>> frame = ice.files(spark, "events", "json", schema="at timestamp, shop string")
        >>> frame.isStreaming
        True
    """
    if format not in FORMATS:
        msg = f"ice.files reads {', '.join(FORMATS)}; got {format!r}"
        raise DefinitionError(msg)
    for option in options:
        known = option.lower() in map(str.lower, _OPTIONS)
        if not known and (hint := guess(option, _OPTIONS, TYPO)):
            msg = f"there is no option {option!r} of files{hint}"
            raise DefinitionError(msg)
    columns = _columns(schema) if isinstance(schema, str) else schema
    if format != "arrow":
        return spark.readStream.format(format).schema(columns).options(**options).load(path)
    # select only the path before the query starts, so that Spark does not read the content
    binary = spark.readStream.format("binaryFile").schema(_BINARY).options(**options).load(path)
    paths = binary.select("path")
    return paths.mapInArrow(rows_of_paths(to_arrow_schema(columns)), columns)


def _columns(schema: str) -> StructType:
    try:
        with reasons_alone():
            return cast("StructType", StructType.fromDDL(schema))
    except PySparkException as error:
        msg = (
            f"cannot read {schema!r} as columns with their types: {reason_of(error)} Write for "
            "example 'at timestamp, shop string'"
        )
        raise DefinitionError(msg) from None
