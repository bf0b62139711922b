"""`moldau outbox retry`: moves dead events back to the outbox."""

from typing import TYPE_CHECKING

from moldau.cli.console import out_console, pluralize
from moldau.cli.outbox.parameters import DEFAULT, AllRows, DatabaseUrl, RowIds, Schema, run_in_database, selected_ids

if TYPE_CHECKING:
    from moldau.outbox.database import Connection


def outbox_retry(
    database_url: DatabaseUrl, ids: RowIds = None, all_rows: AllRows = False, schema: Schema = DEFAULT
) -> None:
    """Send dead events again, when the cause of their failure is gone.

    All dead events with the same topic and key return with them, in their order.

    moldau outbox retry postgresql://localhost/shop 17
    """
    selected = selected_ids(ids, all_rows)

    async def operation(connection: "Connection") -> int:
        from moldau.outbox.dead_letters import retry_dead

        return await retry_dead(connection, schema, selected)

    count = run_in_database(database_url, operation)
    out_console.print(f"{pluralize(count, 'event')} returned to the outbox.", markup=False)
