"""`moldau pipeline check`: whether a pipeline would run, without starting it."""

import os
import tempfile
from pathlib import Path

import typer

from moldau.cli.asking import counted, output, say, show, table
from moldau.cli.pipeline_given import (
    Bootstrap,
    Conf,
    File,
    Master,
    State,
    loaded,
    parse_conf,
    told_plainly,
)
from moldau.pipelines.running.run import now
from moldau.pipelines.running.state_directory import StateDirectory, root


def pipeline_check(
    file: File,
    bootstrap: Bootstrap = None,
    master: Master = None,
    state: State = None,
    conf: Conf = None,
) -> None:
    """See whether topics exist, schemas fit, the SQL is right and sinks can be written. Nothing is started.

    The exit code is 1 where something would keep the pipeline from running.
    """
    settings = parse_conf(conf)
    with told_plainly():
        pipeline = loaded(file, bootstrap)
        from moldau.pipelines.planning.building import Place
        from moldau.pipelines.planning.checking import check
        from moldau.spark import session

        directory = StateDirectory.of(root(state), pipeline.name)
        generation = directory.generations(now()).current
        place = Place(pipeline.checkpoint or str(directory.checkpoints), generation)
        say("starting Spark ...")
        log = Path(tempfile.gettempdir()) / f"moldau-check-{os.getpid()}.log"
        spark = session(
            f"moldau check {pipeline.name}", master=master, settings={**pipeline.spark, **settings}, log=log
        )
        try:
            findings = check(spark, pipeline, place)
        finally:
            spark.stop()
            log.unlink(missing_ok=True)
    if findings:
        rows = table("", "where", "what", "what to do")
        for finding in findings:
            colour = "red" if finding.severity == "error" else "yellow"
            rows.add_row(
                f"[{colour}]{finding.severity}[/]", finding.where, finding.message, finding.fix or ""
            )
        show(rows)
    errors = sum(finding.severity == "error" for finding in findings)
    if errors:
        output.print(f"{pipeline.name} would not run: {counted(errors, 'error')}.", markup=False)
        raise typer.Exit(1)
    output.print(f"{pipeline.name} is ready: moldau pipeline run {file}", markup=False)
