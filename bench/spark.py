"""Runs the Spark benchmarks and writes the results page: `python -m bench.spark [--quick] [--only NAME]`.

A topic is read and written by Moldau's data source, by librdkafka with and without Spark, and by Spark's Kafka
connector, in turn, against the same broker.
"""

from __future__ import annotations

import argparse
import platform
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import confluent_kafka
from rich.console import Console
from tests.interop import spark_connector
from tests.interop.apache_kafka import KAFKA_VERSION, ApacheKafka

from bench.brokers import Kafka, Moldau
from bench.run import commit_line, machine_line, output
from bench.spark_jobs import PARQUET, SINKS
from bench.spark_races import FULL, QUICK, Bench, micro_batches, rates, starts
from bench.spark_report import Measured, render_aims, render_disturbed
from moldau.spark.launcher.java import find_java

NAMES = (*SINKS, "micro-batch", "start")
METHOD = Path(__file__).with_name("METHOD_SPARK.md")
NOTES = Path(__file__).with_name("NOTES_SPARK.md")
RESULTS = Path(__file__).with_name("SPARK.md")


def measure(bench: Bench, names: set[str], with_kafka: bool) -> list[Measured]:
    found: list[Measured] = []
    sinks = [sink for sink in SINKS if sink in names]
    with bench.broker(Moldau) as broker:
        if "start" in names:
            found += starts(bench, broker)
        if "micro-batch" in names:
            found += micro_batches(bench, broker)
        if sinks:
            found += rates(bench, broker, sinks, bench.plan.rounds)
    from_kafka = [sink for sink in sinks if sink != PARQUET]
    if with_kafka and bench.plan.rounds_kafka and from_kafka:
        with bench.broker(Kafka) as broker:
            found += rates(bench, broker, from_kafka, bench.plan.rounds_kafka)
    return found


def _java_of(program: str) -> str:
    return output(program, "-version").splitlines()[0]


def facts(bench: Bench, kafka_missing: str | None, took_s: float) -> str:
    connector = f"Spark's Kafka connector {spark_connector.CONNECTOR_VERSION}"
    theirs = (
        f"{connector}, in a session as Spark comes, {_java_of('java')}"
        if bench.connector_missing is None
        else f"{connector} is left out: {bench.connector_missing}"
    )
    kafka = (
        f"Apache Kafka {KAFKA_VERSION}, 1 GiB of heap, for the tables that say so"
        if kafka_missing is None
        else f"Apache Kafka is left out: {kafka_missing}"
    )
    client = f"confluent-kafka {confluent_kafka.version()} with librdkafka {confluent_kafka.libversion()[0]}"
    ours = f"Moldau {version('moldau')} at commit {commit_line()}, Python {platform.python_version()}"
    spark = f"PySpark {version('pyspark')}, local[2], 2 GB for the driver, pyarrow {version('pyarrow')}"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    lines = (
        f"machine: {machine_line()}",
        f"{ours}, in a session of its own, {_java_of(str(find_java().program))}",
        f"{spark}, numba {version('numba')}",
        theirs,
        client,
        kafka,
        f"rounds: {bench.plan.rounds}, {day}, {took_s / 60:.0f} min in all",
    )
    return "\n".join(f"- {line}" for line in lines)


def page(
    measured: Sequence[Measured], bench: Bench, kafka_missing: str | None, took_s: float, command: str, notes: str
) -> str:
    parts = [
        "# Topics in Spark: Moldau's data source beside others",
        f"Written by `{command}`.",
        facts(bench, kafka_missing, took_s),
        render_disturbed(measured),
        render_aims(measured),
        METHOD.read_text(),
        "## Figures",
        *(one.render() for one in measured),
        notes,
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _connector_missing() -> str | None:
    if shutil.which("java") is None:
        return "java is not installed, and a session as Spark comes needs it"
    return spark_connector.available()


def _kafka_missing(options: argparse.Namespace) -> str | None:
    if options.quick or options.without_kafka:
        return "it was not asked for"
    return ApacheKafka.available()


def _command(options: argparse.Namespace) -> str:
    words = ["python -m bench.spark"]
    words += ["--quick"] if options.quick else []
    words += [f"--only {name}" for name in options.only or ()]
    words += ["--without-kafka"] if options.without_kafka else []
    words += [f"--scale {options.scale:g}"] if options.scale != 1.0 else []
    return " ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description="Moldau's data source in Spark.")
    parser.add_argument("--quick", action="store_true", help="one short run of each case, against Moldau only")
    parser.add_argument("--only", choices=NAMES, action="append", help="leave out the others")
    parser.add_argument("--without-kafka", action="store_true", help="do not read from Apache Kafka besides")
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the rows; to try it out")
    parser.add_argument("--out", type=Path, help="default: bench/SPARK.md for a whole run, else shown")
    parser.add_argument("--dir", type=Path, help="where brokers and Parquet files are meanwhile")
    options = parser.parse_args()
    console = Console()
    plan = QUICK if options.quick else FULL
    plan = replace(plan, records={size: int(rows * options.scale) for size, rows in plan.records.items()})
    kafka_missing, connector_missing = _kafka_missing(options), _connector_missing()
    for what, missing in (("Apache Kafka", kafka_missing), ("Spark's connector", connector_missing)):
        if missing is not None:
            console.print(f"{what} is left out: {missing}")
    began = time.monotonic()
    with TemporaryDirectory(prefix="moldau-bench-spark-", dir=options.dir) as directory:
        bench = Bench(plan, console, Path(directory), connector_missing)
        with console.status("measuring"):
            measured = measure(bench, set(options.only or NAMES), with_kafka=kafka_missing is None)
    whole = not (options.quick or options.only or options.without_kafka or options.scale != 1.0)
    # The notes are about full measurements.
    notes = NOTES.read_text() if whole and NOTES.exists() else ""
    text = page(measured, bench, kafka_missing, time.monotonic() - began, _command(options), notes)
    out = options.out or (RESULTS if whole else None)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
