"""Options and frames of the data source `moldau` for a pipeline's sources."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from moldau.pipelines.definition import PipelineDefinition, Source
from moldau.pipelines.planner.connection import connection_options
from moldau.pipelines.records.decoder import raw_schema
from moldau.pipelines.spec.values import parse_time_ms

_DECODER_PREFIXES = ("avro.", "json.")
"""Prefixes of options for the decoder, not for the data source."""


@dataclass(frozen=True, slots=True)
class StartPosition:
    """Start of a query without a checkpoint: `earliest`, `latest` or an ISO time; None for the source's setting."""

    at: str | None = None


SOURCE_START = StartPosition()


def subscription_options(source: Source) -> dict[str, str]:
    if source.pattern is not None:
        return {"subscribePattern": source.pattern}
    return {"subscribe": ",".join(source.topics)}


def starting_options(at: str) -> dict[str, str]:
    if at in ("earliest", "latest"):
        return {"startingOffsets": at}
    # A partition without a later record starts at its end.
    return {"startingTimestamp": str(parse_time_ms(at)), "startingOffsetsByTimestampStrategy": "latest"}


def stream_options(
    pipeline: PipelineDefinition, source: Source, group: str, begin: Mapping[str, str]
) -> dict[str, str]:
    """`begin` has the starting options of a query without a checkpoint."""
    options = {
        **connection_options(pipeline),
        **subscription_options(source),
        **begin,
        "kafka.group.id": group,
    }
    if pipeline.rate_limit is not None:
        options["maxOffsetsPerTrigger"] = str(pipeline.rate_limit)
    return options | data_source_options(source.options)


def data_source_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if not name.startswith(_DECODER_PREFIXES)}


def read_stream(spark: SparkSession, options: Mapping[str, str], columns: Iterable[str]) -> DataFrame:
    """Reads only these columns; the others are null."""
    requested = set(columns)
    schema = raw_schema()
    fields = [field for field in schema.fields if field.name in requested] or [schema["offset"]]
    headers = {"includeHeaders": "true"} if "headers" in requested else {}
    frame = (
        spark.readStream.format("moldau").schema(T.StructType(fields)).options(**headers, **options).load()
    )
    return frame.selectExpr(
        *[
            field.name
            if field in fields
            else f"CAST(NULL AS {field.dataType.simpleString()}) AS {field.name}"
            for field in schema.fields
        ]
    )


def read_sample(
    spark: SparkSession,
    pipeline: PipelineDefinition,
    source: Source,
    records_max: int,
    *,
    values_only: bool = False,
) -> DataFrame:
    """Reads the oldest existing records."""
    options = {
        **connection_options(pipeline),
        **subscription_options(source),
        **data_source_options(source.options),
    }
    of_streams = ("starting", "maxoffsets", "minoffsets", "maxtrigger")
    options = {name: value for name, value in options.items() if not name.lower().startswith(of_streams)}
    schema = "value BINARY" if values_only else raw_schema()
    options["includeHeaders"] = str(not values_only).lower()
    return spark.read.format("moldau").schema(schema).options(**options).load().limit(records_max)
