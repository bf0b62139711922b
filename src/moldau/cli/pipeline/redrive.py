"""`moldau pipeline redrive`: dead letters go back to the topic they came from, to be tried again."""

import asyncio
from typing import Annotated

import typer

from moldau.cli.cluster_access import CommandError, out_console, pluralize, print_notice
from moldau.cli.pipeline.parameters import Bootstrap, File, load_pipeline
from moldau.cli.spark.parameters import exit_on_error


def pipeline_redrive(
    file: File,
    bootstrap: Bootstrap = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="NUMBER", help="At most so many.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell what would be sent.")] = False,
) -> None:
    """Send the records of the dead-letter topic back to where they came from, with their keys, values and headers.

    For when the pipeline, or what it expects, is right again. What was sent back once is not sent again: a consumer
    group keeps count.
    """
    with exit_on_error():
        pipeline = load_pipeline(file, bootstrap)
        topic = pipeline.dead_letter_topic
        if topic is None:
            raise CommandError(
                f"{pipeline.name} has no dead-letter topic: `dead_letters:` in {file} names one."
            )
        from moldau.pipelines.records.redrive import redrive

        done = asyncio.run(redrive(pipeline, dead_letter_topic=topic, limit=limit, dry_run=dry_run))
    would_be = "would be" if dry_run else "was" if done.count == 1 else "were"
    out_console.print(f"{pluralize(done.count, 'dead letter')} {would_be} sent back.", markup=False)
    for topic, count in done.topics.items():
        out_console.print(f"  {topic}: {count}", markup=False)
    if done.skipped:
        print_notice(
            f"{pluralize(done.skipped, 'record')} left out: no header says which topic they came from."
        )
    if done.others:
        print_notice(
            f"{pluralize(done.others, 'dead letter')} left where they are: they are of other pipelines."
        )
