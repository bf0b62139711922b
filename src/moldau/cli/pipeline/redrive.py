"""`moldau pipeline redrive`: sends dead letters back to their source topics."""

import asyncio
from typing import Annotated

import typer

from moldau.cli.console import CommandError, out_console, pluralize, print_notice
from moldau.cli.pipeline.parameters import Bootstrap, File, load_pipeline
from moldau.cli.spark.parameters import exit_on_error


def pipeline_redrive(
    file: File,
    bootstrap: Bootstrap = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="NUMBER", help="Maximum number of records.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be sent.")] = False,
) -> None:
    """Send the records of the dead-letter topic back to their source topics, with keys, values and headers.

    Use it after the pipeline was fixed. Each record is sent back once: a consumer group tracks the position.
    """
    with exit_on_error():
        pipeline = load_pipeline(file, bootstrap)
        if pipeline.dead_letter_topic is None:
            raise CommandError(f"{pipeline.name} has no dead-letter topic. Set `dead_letters:` in {file}.")
        from moldau.pipelines.records.redrive import redrive

        done = asyncio.run(redrive(pipeline, limit=limit, dry_run=dry_run))
    would_be = "would be" if dry_run else "was" if done.count == 1 else "were"
    out_console.print(f"{pluralize(done.count, 'dead letter')} {would_be} sent back.", markup=False)
    for topic, count in done.topics.items():
        out_console.print(f"  {topic}: {count}", markup=False)
    if done.skipped:
        print_notice(f"{pluralize(done.skipped, 'record')} skipped: they have no header with their source topic.")
    if done.others:
        print_notice(f"{pluralize(done.others, 'dead letter')} skipped: they belong to other pipelines.")
