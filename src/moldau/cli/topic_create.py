"""`moldau topic create`: new topics."""

from typing import Annotated

import typer

from moldau.cli.asking import LOCAL, Bootstrap, ask, parse_settings, tell_each
from moldau.client.admin import NewTopic
from moldau.client.admin_topics import BY_DEFAULT


def topic_create(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    bootstrap: Bootstrap = LOCAL,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="The broker's num.partitions by default.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option("--replicas", "-r", min=1, help="The broker's default.replication.factor by default."),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", "-c", metavar="NAME=VALUE", help="A setting of the topic; may be repeated."),
    ] = None,
) -> None:
    """Create topics.

    moldau topic create orders --partitions 6 --config cleanup.policy=compact
    """
    configs = dict[str, str | None](parse_settings(config or []))
    wanted = [NewTopic(name, partitions or BY_DEFAULT, replicas or BY_DEFAULT, configs) for name in names]
    tell_each(ask(lambda admin: admin.create_topics(wanted), bootstrap), "created")
