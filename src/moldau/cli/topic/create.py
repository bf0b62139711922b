"""`moldau topic create`: new topics."""

from typing import Annotated

import typer

from moldau.cli.arguments import LOCAL, Bootstrap, Topics, int16, int32, parse_settings, text
from moldau.cli.cluster_access import ask, tell_each
from moldau.client.admin.admin import NewTopic
from moldau.client.admin.topics import BY_DEFAULT


def topic_create(
    topics: Topics,
    bootstrap: Bootstrap = LOCAL,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            metavar="NUMBER",
            callback=int32,
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
            callback=int16,
            help="How many brokers keep each partition; default.replication.factor by default.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="NAME=VALUE",
            callback=text,
            help="A setting of the topics; may be repeated.",
        ),
    ] = None,
) -> None:
    """Create topics.

    moldau topic create orders --partitions 6 --config cleanup.policy=compact
    """
    configs = dict[str, str | None](parse_settings(config or [], "--config"))
    wanted = [NewTopic(name, partitions or BY_DEFAULT, replicas or BY_DEFAULT, configs) for name in topics]
    tell_each(ask(lambda admin: admin.create_topics(wanted), bootstrap), "created")
