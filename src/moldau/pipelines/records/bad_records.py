"""Expectations and bad records. A bad record fails the query, is dropped, or goes to the dead-letter topic."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from moldau.client.listener.dead_letters import PREFIX, ErrorHeader
from moldau.pipelines.definition import BadRecordPolicy, Source
from moldau.pipelines.records.columns import BAD, EXPECTATION, IS_BAD, METADATA, RAW_HEADERS, RAW_KEY, RAW_VALUE
from moldau.pipelines.records.decoder import failure_struct
from moldau.pipelines.records.sql_text import cases, literal, quoted, struct


def good_records(frame: DataFrame, source: Source, on_bad: BadRecordPolicy) -> DataFrame:
    """Returns the good records without internal columns. With the policy FAIL, a bad record fails the query."""
    is_good = f"NOT {IS_BAD}"
    if on_bad is BadRecordPolicy.FAIL:
        advice = f". The source {source.name} fails on bad records: set on_bad: drop, or dead_letters: <topic>"
        # End the text with a newline, which separates the text from the error codes that Spark appends.
        text = f"concat('PipelineError: the record at ', {bad_record_text(' is bad')}, {literal(advice)}, char(10))"
        is_good = cases((is_good, "true"), otherwise=f"CAST(raise_error({text}) AS BOOLEAN)")
    return frame.where(is_good).drop(RAW_KEY, RAW_VALUE, RAW_HEADERS, IS_BAD, BAD)


def bad_record_text(between: str = "") -> str:
    """Returns SQL for the position, the text `between`, and the reason: `orders-0 offset 7 is bad (malformed): …`."""
    return (
        f"concat(_topic, '-', _partition, ' offset ', _offset, {literal(between + ' (')}, {BAD}.reason, '): ', "
        f"{BAD}.detail)"
    )


def dead_letter_records(frame: DataFrame, pipeline: str, source: Source) -> DataFrame:
    """Returns the key, value and headers of the bad records. Additional headers describe the error."""
    texts = {
        ErrorHeader.REASON: f"{BAD}.reason",
        ErrorHeader.DETAIL: f"{BAD}.detail",
        ErrorHeader.TOPIC: "_topic",
        ErrorHeader.PARTITION: "_partition",
        ErrorHeader.OFFSET: "_offset",
        ErrorHeader.TIMESTAMP: "unix_millis(_timestamp)",
        ErrorHeader.PIPELINE: literal(pipeline),
        ErrorHeader.SOURCE: literal(source.name),
        ErrorHeader.TIME: "unix_millis(current_timestamp())",
    }
    added = ", ".join(
        struct(key=literal(name), value=f"CAST(coalesce(CAST({text} AS STRING), '') AS BINARY)")
        for name, text in texts.items()
    )
    headers = f"coalesce({RAW_HEADERS}, CAST(array() AS ARRAY<STRUCT<key: STRING, value: BINARY>>))"
    # Drop old error headers, so that a record that was sent back and fails again has only those of its last failure.
    kept = f"filter({headers}, header -> NOT startswith(header.key, {literal(PREFIX)}))"
    return frame.where(IS_BAD).selectExpr(
        f"{RAW_KEY} AS key", f"{RAW_VALUE} AS value", f"concat({kept}, array({added})) AS headers"
    )


def without_metadata(frame: DataFrame, keeping: tuple[str, ...] = ()) -> DataFrame:
    return frame.drop(*[name for name in METADATA if name not in keeping])


def apply_expectations(frame: DataFrame, expectations: Mapping[str, str]) -> DataFrame:
    """Marks records as bad if an expectation is false or null. Tombstones are never marked."""
    if not expectations:
        return frame
    # Use one column per expectation, so that Spark's errors quote the expectation as the user wrote it.
    columns = {name: f"__expected {name}" for name in expectations}
    conditions = [F.expr(sql).cast("boolean").alias(columns[name]) for name, sql in expectations.items()]
    is_violated = {name: f"NOT coalesce({quoted(column)}, false)" for name, column in columns.items()}
    violations = ", ".join(cases((is_violated[name], literal(f"{name}: {sql}"))) for name, sql in expectations.items())
    # A record that could not be decoded keeps the decoder's error as its reason.
    bad = cases((IS_BAD, BAD), otherwise=failure_struct(EXPECTATION, f"concat_ws('; ', {violations})"))
    kept = [quoted(name) for name in frame.columns if name not in (IS_BAD, BAD)]
    return frame.select("*", *conditions).selectExpr(
        *kept, f"{IS_BAD} OR (NOT _deleted AND ({' OR '.join(is_violated.values())})) AS {IS_BAD}", f"{bad} AS {BAD}"
    )
