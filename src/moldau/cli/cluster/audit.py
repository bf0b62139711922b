"""`moldau cluster audit`: compares the replicas of topics on Spark."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from moldau.cli.console import bytes_to_json, err_console, out_console, pluralize, print_notice
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Json, validate_name
from moldau.cli.progress import ProgressBar, progress_bar
from moldau.cli.spark.parameters import MasterUrl, Settings, exit_on_error, parse_spark_conf

POLL_INTERVAL_S = 0.5


def cluster_audit(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC", callback=validate_name, help="Topics to audit; by default all, also internal ones."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=0.1,
            help="How long to wait for a replica that does not get closer to the high watermark.",
        ),
    ] = 30.0,
    master: MasterUrl = None,
    conf: Settings = None,
    as_json: Json = False,
) -> None:
    """Read every replica of topics and check that all have the same records up to the high watermark.

    Replicas are compared batch by batch, byte for byte; on compacted topics by the latest record of each key. The audit
    reads only, and works under load. It runs on Spark on this machine, or on the cluster of --master.
    The exit code is 1 if a replica differs, is behind or cannot be read.

    moldau cluster audit orders

    moldau cluster audit --json
    """
    settings = parse_spark_conf(conf)
    with exit_on_error():
        from moldau.spark import session
        from moldau.spark.audit.run import AuditOptions, audit

        connection = {"bootstrap": bootstrap, "client_id": "moldau-audit"}
        options = AuditOptions(connection, tuple(topics) if topics else None, round(timeout_s * 1000))
        print_notice("starting Spark ...")
        spark = session("moldau audit", master=master, settings=settings, quiet=True)
        try:
            with _task_progress(spark):
                results = audit(spark, options)
        finally:
            spark.stop()
    if as_json:
        for each in results:
            out_console.print(json.dumps(_to_json(each)), markup=False)
    else:
        _print_results(results)
    if any(not each.is_equal for each in results):
        raise typer.Exit(1)


@contextmanager
def _task_progress(spark: Any) -> Iterator[None]:
    """Shows how many tasks of Spark are done."""
    context: Any = getattr(spark, "sparkContext", None)
    stopped = threading.Event()

    def poll(bar: ProgressBar) -> None:
        tasks: dict[int, tuple[int, int]] = {}
        while not stopped.wait(POLL_INTERVAL_S):
            try:
                _update_tasks(tasks, context.statusTracker())
            except Exception:
                # The progress is not essential, and the audit reports that Spark has failed.
                return
            done, total = (sum(column) for column in zip(*tasks.values(), strict=True)) if tasks else (0, 0)
            if total:
                bar.update(done, total, f"{done} of {pluralize(total, 'task')}")

    with progress_bar("auditing") as bar:
        poller = threading.Thread(target=poll, args=(bar,), name="audit-progress", daemon=True)
        # Spark Connect has no context.
        if bar.is_shown and context is not None:
            poller.start()
        try:
            yield
        finally:
            stopped.set()
            if poller.is_alive():
                poller.join()


def _update_tasks(tasks: dict[int, tuple[int, int]], tracker: Any) -> None:
    """Updates how many tasks of each stage are done, and how many there are."""
    active = list(tracker.getActiveStageIds())
    for stage, (_, total) in tasks.items():
        if stage not in active:
            tasks[stage] = (total, total)
    for stage in active:
        info = tracker.getStageInfo(stage)
        if info is not None:
            tasks[stage] = (info.numCompletedTasks, info.numTasks)


def _print_results(results: Any) -> None:
    for result in results:
        for each in result.differences:
            where = "" if each.offset is None else f" at offset {each.offset}"
            key = "" if each.key is None else f", key {_key_text(each.key)}"
            replica = "" if each.replica < 0 else f"replica on broker {each.replica}{where}{key}: "
            out_console.print(f"{each.partition}: {replica}{each.what}", style="red", markup=False)
            if each.count > 1:
                unit = "keys" if result.planned.by_key else "batches"
                out_console.print(f"    {each.count:,} {unit} of this replica differ", markup=False)
    by_topic: dict[str, list[Any]] = {}
    for result in results:
        by_topic.setdefault(result.planned.topic, []).append(result)
    for topic, parts in by_topic.items():
        differing = sum(not each.is_equal for each in parts)
        out_console.print(f"{topic}: {_summary(parts, differing)}", markup=False)
    if not results:
        err_console.print("There are no topics.", markup=False)


def _summary(parts: Any, differing: int) -> str:
    partitions = pluralize(len(parts), "partition")
    if differing:
        return f"replicas differ in {differing} of {partitions}"
    replicas = sum(len(each.planned.brokers) for each in parts)
    if parts[0].planned.by_key:
        amount = f"latest records of {sum(each.units for each in parts):,} keys"
    else:
        amount = f"{sum(each.units for each in parts):,} batches, {sum(each.size for each in parts):,} bytes"
    verb = "is" if replicas == 1 else "are"
    return f"{pluralize(replicas, 'replica')} of {partitions} {verb} equal up to the high watermark ({amount})"


def _key_text(key: bytes) -> str:
    return json.dumps(bytes_to_json(key))


def _to_json(result: Any) -> dict[str, Any]:
    planned = result.planned
    return {
        "topic": planned.topic,
        "partition": planned.partition,
        "leader": planned.leader,
        "replicas": sorted((*planned.brokers, *planned.down)),
        "compared": "keys" if planned.by_key else "batches",
        "start": planned.start,
        "end": planned.end,
        "count": result.units,
        "bytes": result.size,
        "equal": result.is_equal,
        "differences": [
            {
                "replica": each.replica,
                "offset": each.offset,
                "key": None if each.key is None else bytes_to_json(each.key),
                "what": each.what,
                "count": each.count,
            }
            for each in result.differences
        ],
    }
