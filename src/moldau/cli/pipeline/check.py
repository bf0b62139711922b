"""`moldau pipeline check`: whether a pipeline would run, without starting it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.text import Text

from moldau.cli.cluster_access import out_console, pluralize, print_notice, print_table, table
from moldau.cli.pipeline.parameters import Bootstrap, File, State, load_pipeline, state_directory
from moldau.cli.spark.parameters import MasterUrl, Settings, exit_on_error, parse_spark_conf
from moldau.pipelines.runtime.run import now
from moldau.spark.errors import LaunchError


def pipeline_check(
    file: File,
    bootstrap: Bootstrap = None,
    master: MasterUrl = None,
    state: State = None,
    conf: Settings = None,
) -> None:
    """See whether topics exist, schemas fit, the SQL is right and sinks can be written. Nothing is started.

    The exit code is 1 where something would keep the pipeline from running.
    """
    settings = parse_spark_conf(conf)
    with exit_on_error():
        pipeline = load_pipeline(file, bootstrap)
        from moldau.pipelines.planner.checks import check
        from moldau.pipelines.planner.query_planner import CheckpointLocation
        from moldau.spark import session

        directory = state_directory(pipeline, state)
        generation = directory.generations(now()).current
        place = CheckpointLocation(pipeline.checkpoint or str(directory.checkpoints), generation)
        print_notice("starting Spark ...")
        with _java_log() as log:
            spark = session(
                f"moldau check {pipeline.name}",
                master=master,
                settings={**pipeline.spark, **settings},
                log=log,
            )
            try:
                findings = check(spark, pipeline, place)
            finally:
                spark.stop()
    if findings:
        rows = table("", "where", "what", "what to do")
        for finding in findings:
            colour = "red" if finding.severity == "error" else "yellow"
            severity = Text(finding.severity, style=colour)
            rows.add_row(severity, finding.where, finding.message, finding.fix or "")
        print_table(rows)
    errors = sum(finding.severity == "error" for finding in findings)
    if errors:
        out_console.print(f"{pipeline.name} would not run: {pluralize(errors, 'error')}.", markup=False)
        raise typer.Exit(1)
    out_console.print(f"{pipeline.name} is ready: moldau pipeline run {file}", markup=False)


@contextmanager
def _java_log() -> Iterator[Path]:
    """For what Java prints. It stays where Spark could not be started and said something: that is the answer."""
    descriptor, name = tempfile.mkstemp(prefix="moldau-check-", suffix=".log")
    os.close(descriptor)
    log = Path(name)
    is_the_answer = False
    try:
        yield log
    except LaunchError:
        is_the_answer = log.stat().st_size > 0
        raise
    finally:
        if not is_the_answer:
            log.unlink()
