"""`moldau topic create`: new topics."""

from typing import Annotated

import typer

from moldau.cli.cluster_access import report_results, run_admin
from moldau.cli.parameters import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Topics,
    parse_name_values,
    validate_int16,
    validate_int32,
    validate_text,
)
from moldau.client.admin.admin import NewTopic
from moldau.client.admin.topics import BROKER_DEFAULT


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
            help="Into how many each is divided; the broker's num.partitions by default.",
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
            help="How many brokers keep each partition; default.replication.factor by default.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="NAME=VALUE",
            callback=validate_text,
            help="A setting of the topics; may be repeated.",
        ),
    ] = None,
) -> None:
    """Create topics.

    moldau topic create orders --partitions 6 --config cleanup.policy=compact
    """
    configs = dict[str, str | None](parse_name_values(config or [], "--config"))
    wanted = [
        NewTopic(name, partitions or BROKER_DEFAULT, replicas or BROKER_DEFAULT, configs) for name in topics
    ]
    report_results(run_admin(lambda admin: admin.create_topics(wanted), bootstrap), "created")
