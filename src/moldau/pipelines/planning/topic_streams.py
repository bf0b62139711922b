"""The records of a source, read with the data source `moldau`: where from, from when on, in whose name."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T

from moldau.pipelines.definition import Pipeline, Source
from moldau.pipelines.form.texts import time_ms
from moldau.pipelines.planning.connecting import connection
from moldau.pipelines.records.decoding import raw_schema

_OF_DECODING = ("avro.", "json.")
"""Options that begin so are for the values, not for the data source."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where a query without a checkpoint begins: `earliest`, `latest` or an ISO time; None: as its source says."""

    at: str | None = None


AS_THE_SOURCES_SAY = Start()


def subscription(source: Source) -> dict[str, str]:
    if source.pattern is not None:
        return {"subscribePattern": source.pattern}
    return {"subscribe": ",".join(source.topics)}


def starting(at: str) -> dict[str, str]:
    if at in ("earliest", "latest"):
        return {"startingOffsets": at}
    # A partition without a record since then begins at its end: that is where the next one will be.
    return {"startingTimestamp": str(time_ms(at)), "startingOffsetsByTimestampStrategy": "latest"}


def stream_options(
    pipeline: Pipeline, source: Source, group: str, begin: Mapping[str, str]
) -> dict[str, str]:
    """`begin`: what says where a query without a checkpoint begins."""
    options = {
        **connection(pipeline),
        **subscription(source),
        **begin,
        "kafka.group.id": group,
    }
    if pipeline.rate_limit is not None:
        options["maxOffsetsPerTrigger"] = str(pipeline.rate_limit)
    return options | own_options(source.options)


def own_options(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if not name.startswith(_OF_DECODING)}


def stream(spark: SparkSession, options: Mapping[str, str], columns: Iterable[str]) -> DataFrame:
    """Only these columns are read; the others of the data source are there and null."""
    wanted = set(columns)
    schema = raw_schema()
    fields = [field for field in schema.fields if field.name in wanted] or [schema["offset"]]
    headers = {"includeHeaders": "true"} if "headers" in wanted else {}
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


def sample(
    spark: SparkSession, pipeline: Pipeline, source: Source, records_max: int, *, values_only: bool = False
) -> DataFrame:
    """Records of the topics as they are now, the oldest that are there."""
    options = {**connection(pipeline), **subscription(source), **own_options(source.options)}
    of_streams = ("starting", "maxoffsets", "minoffsets", "maxtrigger")
    options = {name: value for name, value in options.items() if not name.lower().startswith(of_streams)}
    schema = "value BINARY" if values_only else raw_schema()
    options["includeHeaders"] = str(not values_only).lower()
    return spark.read.format("moldau").schema(schema).options(**options).load().limit(records_max)
