"""`moldau pipeline redrive`: dead letters go back to the topic they came from, to be tried again."""

import asyncio
from typing import Annotated

import typer

from moldau.cli.cluster_access import CommandError, counted, output, say
from moldau.cli.pipeline.arguments import Bootstrap, File, loaded
from moldau.cli.spark.arguments import told_plainly


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
    with told_plainly():
        pipeline = loaded(file, bootstrap)
        topic = pipeline.dead_letter_topic
        if topic is None:
            raise CommandError(
                f"{pipeline.name} has no dead-letter topic: `dead_letters:` in {file} names one."
            )
        from moldau.pipelines.records.dead_letters import redrive

        done = asyncio.run(redrive(pipeline, dead_letter_topic=topic, limit=limit, dry_run=dry_run))
    would_be = "would be" if dry_run else "was" if done.count == 1 else "were"
    output.print(f"{counted(done.count, 'dead letter')} {would_be} sent back.", markup=False)
    for topic, count in done.topics.items():
        output.print(f"  {topic}: {count}", markup=False)
    if done.skipped:
        say(f"{counted(done.skipped, 'record')} left out: no header says which topic they came from.")
    if done.others:
        say(f"{counted(done.others, 'dead letter')} left where they are: they are of other pipelines.")
