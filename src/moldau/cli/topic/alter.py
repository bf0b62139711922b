"""`moldau topic alter`: more partitions, other settings."""

from typing import Annotated

import typer

from moldau.cli.cluster_access import out_console, run_admin
from moldau.cli.parameters import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Topic,
    parse_name_values,
    validate_int32,
    validate_text,
)
from moldau.client.admin.admin import Admin
from moldau.client.admin.requester import single_result


def topic_alter(
    topic: Topic,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            metavar="NUMBER",
            callback=validate_int32,
            help="How many it shall have in all; never fewer than it has.",
        ),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="NAME=VALUE",
            callback=validate_text,
            help="Set a setting; may be repeated.",
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="NAME",
            callback=validate_text,
            help="Set one back to its default; may be repeated.",
        ),
    ] = None,
) -> None:
    """Give a topic more partitions or other settings.

    With more partitions the records of a key may go to another one than before.

    moldau topic alter orders --partitions 12 --config retention.ms=86400000
    """
    changes: dict[str, str | None] = {
        **parse_name_values(config or [], "--config"),
        **dict.fromkeys(unset or []),
    }
    if partitions is None and not changes:
        raise typer.BadParameter("say what to change: --partitions, --config or --unset")

    async def question(admin: Admin) -> None:
        if partitions is not None:
            single_result(await admin.create_partitions({topic: partitions}))
        if changes:
            await admin.alter_topic_configs(topic, changes)

    run_admin(question, bootstrap)
    out_console.print(f"{topic}: changed", markup=False)
