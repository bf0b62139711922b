"""`moldau pipeline check`: validates a pipeline without starting it."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import typer
from rich.text import Text

from moldau.cli.console import make_table, out_console, pluralize, print_json_lines, print_notice, print_table
from moldau.cli.parameters import Json
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
    as_json: Json = False,
) -> None:
    """Check that topics exist, schemas match, the SQL is valid and sinks are writable, without starting the pipeline.

    The exit code is 1 if the pipeline would not run.
    """
    settings = parse_spark_conf(conf)
    with exit_on_error():
        pipeline = load_pipeline(file, bootstrap)
        from moldau.pipelines.planner.checks import check
        from moldau.pipelines.planner.query_planner import CheckpointLocation
        from moldau.spark import session

        directory = state_directory(pipeline, state)
        generation = directory.generations(now()).current
        checkpoint_location = CheckpointLocation(pipeline.checkpoint or str(directory.checkpoints), generation)
        print_notice("starting Spark ...")
        with _java_log() as log:
            spark = session(
                f"moldau check {pipeline.name}", master=master, settings={**pipeline.spark, **settings}, log=log
            )
            try:
                findings = check(spark, pipeline, checkpoint_location)
            finally:
                spark.stop()
    if as_json:
        print_json_lines(map(asdict, findings))
    elif findings:
        rows = make_table("", "where", "problem", "fix")
        for finding in findings:
            severity = Text(finding.severity, style="red" if finding.severity == "error" else "yellow")
            rows.add_row(severity, finding.where, finding.message, finding.fix)
        print_table(rows)
    errors = sum(finding.severity == "error" for finding in findings)
    if as_json:
        raise typer.Exit(1 if errors else 0)
    if errors:
        out_console.print(f"{pipeline.name} cannot run: {pluralize(errors, 'error')}.", markup=False)
        raise typer.Exit(1)
    out_console.print(f"{pipeline.name} is ready. Start it with: moldau pipeline run {file}", markup=False)


@contextmanager
def _java_log() -> Iterator[Path]:
    """Yields a file for the output of Java. The file is deleted, unless Spark failed to start and wrote to the file."""
    descriptor, name = tempfile.mkstemp(prefix="moldau-check-", suffix=".log")
    os.close(descriptor)
    log = Path(name)
    with ExitStack() as cleanup:
        cleanup.callback(log.unlink)
        try:
            yield log
        except LaunchError:
            if log.stat().st_size > 0:
                cleanup.pop_all()
            raise
