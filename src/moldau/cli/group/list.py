"""`moldau group list`: the groups of a cluster."""

from typing import Annotated

import typer

from moldau.cli.cluster_access import print_notice, print_table, run_admin, table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, validate_text


def group_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            callback=validate_text,
            help="Only groups in this state (Stable, Empty, ...); may be repeated.",
        ),
    ] = None,
) -> None:
    """List consumer groups and the state each is in."""
    groups = run_admin(lambda admin: admin.list_groups(states=state or ()), bootstrap)
    if not groups:
        print_notice(
            "There are no such groups."
            if state
            else "There are no groups: `moldau consume TOPIC --group NAME` makes one."
        )
        return
    rows = table("group", "state", "type", "protocol")
    for group in groups:
        rows.add_row(group.group_id, group.state, group.type, group.protocol_type)
    print_table(rows)
