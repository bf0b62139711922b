"""What becomes of records that are bad: the query fails, they are left out, or they go to the dead-letter topic."""

from pyspark.sql import DataFrame

from moldau.pipelines.definition import OnBad, Source
from moldau.pipelines.records.columns import BAD, IS_BAD, METADATA, RAW_HEADERS, RAW_KEY, RAW_VALUE
from moldau.pipelines.records.error_headers import PREFIX, Error
from moldau.pipelines.records.sql_text import cases, literal, struct


def good(frame: DataFrame, source: Source, on_bad: OnBad) -> DataFrame:
    """The good records, as their columns; a bad one fails the query where it shall."""
    is_good = f"NOT {IS_BAD}"
    if on_bad is OnBad.FAIL:
        is_good = cases((is_good, "true"), otherwise=f"CAST(raise_error({_sentence(source)}) AS BOOLEAN)")
    return frame.where(is_good).drop(RAW_KEY, RAW_VALUE, RAW_HEADERS, IS_BAD, BAD)


def _sentence(source: Source) -> str:
    advice = f". The source {source.name} fails on bad records: set on_bad: drop, or dead_letters: <topic>"
    # It ends in a line of its own: Spark writes its codes behind.
    return f"concat('PipelineError: the record at ', {where_and_why(' is bad')}, {literal(advice)}, char(10))"


def where_and_why(between: str = "") -> str:
    """Of a bad record, as `orders-0 offset 7 (malformed): …`."""
    return (
        f"concat(_topic, '-', _partition, ' offset ', _offset, {literal(between + ' (')}, {BAD}.reason, '): ', "
        f"{BAD}.detail)"
    )


def dead_letters(frame: DataFrame, pipeline: str, source: Source) -> DataFrame:
    """The bad records as they came, with headers that say why they are here: key, value and headers for the topic."""
    texts = {
        Error.REASON: f"{BAD}.reason",
        Error.DETAIL: f"{BAD}.detail",
        Error.TOPIC: "_topic",
        Error.PARTITION: "_partition",
        Error.OFFSET: "_offset",
        Error.TIMESTAMP: "unix_millis(_timestamp)",
        Error.PIPELINE: literal(pipeline),
        Error.SOURCE: literal(source.name),
        Error.TIME: "unix_millis(current_timestamp())",
    }
    added = ", ".join(
        struct(key=literal(name), value=f"CAST(coalesce(CAST({text} AS STRING), '') AS BINARY)")
        for name, text in texts.items()
    )
    # One that was sent back and is bad again tells of its last failure only.
    headers = f"coalesce({RAW_HEADERS}, CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>))"
    kept = f"filter({headers}, header -> NOT startswith(header.key, {literal(PREFIX)}))"
    return frame.where(IS_BAD).selectExpr(
        f"{RAW_KEY} AS key", f"{RAW_VALUE} AS value", f"concat({kept}, array({added})) AS headers"
    )


def without_metadata(frame: DataFrame, keeping: tuple[str, ...] = ()) -> DataFrame:
    return frame.drop(*[name for name in METADATA if name not in keeping])
