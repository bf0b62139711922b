"""What must be true of a source's records: SQL over their columns, by name."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from moldau.pipelines.records.columns import BAD, EXPECTATION, IS_BAD
from moldau.pipelines.records.decoder import failure_struct
from moldau.pipelines.records.sql_text import cases, literal, quoted


def apply_expectations(frame: DataFrame, expectations: Mapping[str, str]) -> DataFrame:
    """The frame whose records are bad, too, where one of these is false or null. Tombstones are not asked."""
    if not expectations:
        return frame
    # Each expectation is a column of its own for a moment, so that one that is wrong is told of as it was written.
    asked = [F.expr(sql).cast("boolean").alias(_name(name)) for name, sql in expectations.items()]
    is_violated = {name: f"NOT coalesce({quoted(_name(name))}, false)" for name in expectations}
    violations = ", ".join(
        cases((is_violated[name], literal(f"{name}: {sql}"))) for name, sql in expectations.items()
    )
    # What could not be decoded is not asked: its nulls tell nothing more.
    bad = cases((IS_BAD, BAD), otherwise=failure_struct(EXPECTATION, f"concat_ws('; ', {violations})"))
    kept = [quoted(name) for name in frame.columns if name not in (IS_BAD, BAD)]
    return frame.select("*", *asked).selectExpr(
        *kept,
        f"{IS_BAD} OR (NOT _deleted AND ({' OR '.join(is_violated.values())})) AS {IS_BAD}",
        f"{bad} AS {BAD}",
    )


def _name(expectation: str) -> str:
    return f"__expected {expectation}"
