"""Options and frames of the data source `moldau` for a pipeline's sources."""

from collections.abc import Iterable, Mapping

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from moldau.pipelines.definition import PipelineDefinition, Source
from moldau.pipelines.planner.connection import connection_options
from moldau.pipelines.records.decoder import raw_schema
from moldau.pipelines.spec.values import parse_time

ISOLATION_LEVEL = "kafka.isolation.level"
_DECODER_PREFIXES = ("avro.", "json.")
"""The prefixes of options that are for the decoder and not for the data source."""


def source_options(pipeline: PipelineDefinition, source: Source) -> dict[str, str]:
    """Returns the options of reads from a source, except its own options. Records of aborted transactions are not read
    by default."""
    options = {ISOLATION_LEVEL: "read_committed", **connection_options(pipeline)}
    if source.pattern is not None:
        return options | {"subscribePattern": source.pattern}
    return options | {"subscribe": ",".join(source.topics)}


def reads_committed(pipeline: PipelineDefinition, source: Source) -> bool:
    options = source_options(pipeline, source) | data_source_options(source.options)
    return options[ISOLATION_LEVEL].lower() == "read_committed"


def starting_options(at: str) -> dict[str, str]:
    if at in ("earliest", "latest"):
        return {"startingOffsets": at}
    time_ms = int(parse_time(at).timestamp() * 1000)
    # With the strategy `latest`, a partition without a record at or after the time starts at its end.
    return {"startingTimestamp": str(time_ms), "startingOffsetsByTimestampStrategy": "latest"}


def stream_options(
    pipeline: PipelineDefinition, source: Source, group: str, begin: Mapping[str, str]
) -> dict[str, str]:
    """Returns the options of a streaming read. `begin` has the starting options for a query without a checkpoint."""
    options = {**source_options(pipeline, source), **begin, "kafka.group.id": group}
    if pipeline.rate_limit is not None:
        options["maxOffsetsPerTrigger"] = str(pipeline.rate_limit)
    return options | data_source_options(source.options)


def data_source_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if not name.startswith(_DECODER_PREFIXES)}


def read_stream(spark: SparkSession, options: Mapping[str, str], columns: Iterable[str]) -> DataFrame:
    """Returns a frame with all record columns. Only `columns` are read; the other columns are null."""
    requested = set(columns)
    schema = raw_schema()
    fields = [field for field in schema.fields if field.name in requested] or [schema["offset"]]
    headers = {"includeHeaders": "true"} if "headers" in requested else {}
    frame = spark.readStream.format("moldau").schema(T.StructType(fields)).options(**headers, **options).load()
    return frame.selectExpr(
        *[
            field.name if field in fields else f"CAST(NULL AS {field.dataType.simpleString()}) AS {field.name}"
            for field in schema.fields
        ]
    )


def read_sample(
    spark: SparkSession, pipeline: PipelineDefinition, source: Source, records_max: int, *, values_only: bool = False
) -> DataFrame:
    """Reads up to `records_max` existing records, from the earliest offsets on."""
    options = source_options(pipeline, source) | data_source_options(source.options)
    of_streams = ("starting", "maxoffsets", "minoffsets", "maxtrigger")
    options = {name: value for name, value in options.items() if not name.lower().startswith(of_streams)}
    schema = "value BINARY" if values_only else raw_schema()
    options["includeHeaders"] = str(not values_only).lower()
    return spark.read.format("moldau").schema(schema).options(**options).load().limit(records_max)
