"""`moldau group list`: the groups of a cluster."""

from typing import Annotated

import typer

from moldau.cli.arguments import LOCAL, Bootstrap, text
from moldau.cli.cluster_access import ask, say, show, table


def group_list(
    bootstrap: Bootstrap = LOCAL,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            callback=text,
            help="Only groups in this state (Stable, Empty, ...); may be repeated.",
        ),
    ] = None,
) -> None:
    """List consumer groups and the state each is in."""
    groups = ask(lambda admin: admin.list_groups(states=state or ()), bootstrap)
    if not groups:
        say(
            "There are no such groups."
            if state
            else "There are no groups: `moldau consume TOPIC --group NAME` makes one."
        )
        return
    rows = table("group", "state", "type", "protocol")
    for group in groups:
        rows.add_row(group.group_id, group.state, group.type, group.protocol_type)
    show(rows)
