"""`moldau topic create`: creates topics."""

from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import report_results
from moldau.cli.parameters import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Topics,
    parse_name_values,
    validate_int16,
    validate_int32,
    validate_text,
)
from moldau.client.admin.types import BROKER_DEFAULT, NewTopic


def topic_create(
    topics: Topics,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            metavar="NUMBER",
            callback=validate_int32,
            help="Number of partitions; by default num.partitions of the broker.",
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            "--replicas",
            "-r",
            min=1,
            metavar="NUMBER",
            callback=validate_int16,
            help="Replication factor; by default default.replication.factor of the broker.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", "-c", metavar="NAME=VALUE", callback=validate_text, help="Topic setting; can be repeated."
        ),
    ] = None,
) -> None:
    """Create topics.

    moldau topic create orders --partitions 6 --config cleanup.policy=compact
    """
    configs = dict[str, str | None](parse_name_values(config or [], "--config"))
    new_topics = [NewTopic(name, partitions or BROKER_DEFAULT, replicas or BROKER_DEFAULT, configs) for name in topics]
    report_results(run_admin(lambda admin: admin.create_topics(new_topics), bootstrap), "created")
