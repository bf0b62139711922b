"""`moldau topic alter`: more partitions, other settings."""

from typing import Annotated

import typer

from moldau.cli.asking import LOCAL, Bootstrap, ask, output, parse_settings
from moldau.client.admin import Admin
from moldau.client.admin_base import only


def topic_alter(
    name: Annotated[str, typer.Argument(metavar="TOPIC")],
    bootstrap: Bootstrap = LOCAL,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", "-p", min=1, help="How many it shall have in all; never fewer."),
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option("--config", "-c", metavar="NAME=VALUE", help="May be repeated.")
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option("--unset", metavar="NAME", help="Back to the default; may be repeated."),
    ] = None,
) -> None:
    """Give a topic more partitions or other settings. Keys may come to other partitions than before."""
    changes: dict[str, str | None] = {**parse_settings(config or []), **dict.fromkeys(unset or [])}
    if partitions is None and not changes:
        raise typer.BadParameter("say what to change: --partitions, --config or --unset")

    async def question(admin: Admin) -> None:
        if partitions is not None:
            only(await admin.create_partitions({name: partitions}))
        if changes:
            await admin.alter_topic_configs(name, changes)

    ask(question, bootstrap)
    output.print(f"{name}: changed", markup=False)
