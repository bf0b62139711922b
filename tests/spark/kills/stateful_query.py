"""The driver that is killed with a stateful query: it writes every row to a topic with count and sum of all rows of its
key so far, which are the query's state.

It takes its job as JSON on the command line.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import moldau.spark
from kills.driver_program import STAMPED, read_rows, run_until_finished, stamp

QUERY = "sums"
STATE = "count LONG, sum LONG"
ROWS = f"partition INT, offset LONG, value STRING, {STATE}"
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    # Every batch is checked afterwards, so none may be cleaned up.
    "spark.sql.streaming.minBatchesToRetain": "1000000",
}


@dataclass(frozen=True)
class StatefulJob:
    bootstrap: str
    read: str
    write: str
    directory: str
    run: int
    rows_per_batch: int
    keys: int
    """A row with number n has the key n % keys. All rows of a key are in one partition."""
    master: str
    settings: Mapping[str, str]
    slow_s: float
    """How much slower some tasks are than others; see `stamp`."""

    def as_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def checkpoint(self) -> Path:
        return Path(self.directory, "checkpoints", QUERY)


def main() -> None:
    job = StatefulJob(**json.loads(sys.argv[1]))
    spark = moldau.spark.session("kills", master=job.master, settings={**SETTINGS, **job.settings}, quiet=True)
    rows = read_rows(spark, job.bootstrap, job.read, job.rows_per_batch)
    keyed = rows.selectExpr(
        f"CAST(CAST(value AS STRING) AS LONG) % {job.keys} AS key", "partition", "offset", "CAST(value AS STRING)"
    )
    summed = keyed.groupBy("key").applyInPandasWithState(_with_sums, ROWS, STATE, "append", GroupStateTimeout.NoTimeout)

    def start() -> list[StreamingQuery]:
        stamped = summed.mapInArrow(stamp(job.run, "count", "sum", slow_s=job.slow_s), STAMPED)
        options = {"kafka.bootstrap.servers": job.bootstrap, "topic": job.write, "includeHeaders": "true"}
        writer = stamped.writeStream.format("moldau").options(**options).queryName(QUERY)
        return [writer.option("checkpointLocation", str(job.checkpoint)).start()]

    run_until_finished(spark, start)
    spark.stop()


def _with_sums(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Adds count and sum of the key's rows so far, in the order of offsets."""
    count, total = state.get if state.exists else (0, 0)
    rows = pd.concat(list(frames)).sort_values("offset", ignore_index=True)
    rows["count"] = range(count + 1, count + len(rows) + 1)
    rows["sum"] = rows["value"].astype("int64").cumsum() + total
    state.update((int(rows["count"].iloc[-1]), int(rows["sum"].iloc[-1])))
    yield rows[["partition", "offset", "value", "count", "sum"]]


if __name__ == "__main__":
    main()
