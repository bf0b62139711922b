"""`moldau group list`: lists groups."""

from typing import Annotated

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, print_json_lines, print_notice, print_table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Json, option, validate_text


def group_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    state: Annotated[
        list[str] | None,
        option("--state", "STATE", "Only groups in this state (Stable, Empty, ...); can be repeated.", validate_text),
    ] = None,
    as_json: Json = False,
) -> None:
    """List consumer groups with their states."""
    groups = run_admin(lambda admin: admin.list_groups(states=state or ()), bootstrap)
    if as_json:
        print_json_lines(
            {"group": each.group_id, "state": each.state, "type": each.type, "protocol_type": each.protocol_type}
            for each in groups
        )
        return
    if not groups:
        print_notice(
            "No groups in this state."
            if state
            else "There are no groups. Run `moldau consume TOPIC --group NAME` to create one."
        )
        return
    rows = make_table("group", "state", "type", "protocol")
    for group in groups:
        rows.add_row(group.group_id, group.state, group.type, group.protocol_type)
    print_table(rows)
