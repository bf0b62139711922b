"""`moldau outbox discard`: deletes dead events."""

from typing import TYPE_CHECKING

import typer

from moldau.cli.console import out_console, pluralize
from moldau.cli.outbox.parameters import DEFAULT, AllRows, DatabaseUrl, RowIds, Schema, run_in_database, selected_ids
from moldau.cli.parameters import Yes

if TYPE_CHECKING:
    from moldau.outbox.database import Connection


def outbox_discard(
    database_url: DatabaseUrl, ids: RowIds = None, all_rows: AllRows = False, schema: Schema = DEFAULT, yes: Yes = False
) -> None:
    """Delete dead events, which are then never sent. Events that waited for them are sent.

    moldau outbox discard postgresql://localhost/shop 17
    """
    selected = selected_ids(ids, all_rows)
    if not yes:
        what = "all dead events" if selected is None else pluralize(len(selected), "dead event")
        typer.confirm(f"Delete {what}?", abort=True)

    async def operation(connection: "Connection") -> int:
        from moldau.outbox.dead_letters import discard_dead

        return await discard_dead(connection, schema, selected)

    count = run_in_database(database_url, operation)
    out_console.print(f"{pluralize(count, 'event')} deleted.", markup=False)
