"""`moldau outbox install`: creates the tables and functions of the outbox."""

from typing import TYPE_CHECKING, Annotated

import typer

from moldau.cli.console import out_console, print_notice
from moldau.cli.outbox.parameters import DEFAULT, DatabaseUrl, Schema, run_in_database
from moldau.cli.parameters import option
from moldau.outbox.schema import TopicGrant

if TYPE_CHECKING:
    from moldau.outbox.database import Connection


def outbox_install(
    database_url: DatabaseUrl,
    schema: Schema = DEFAULT,
    grants: Annotated[
        list[str] | None,
        option(
            "--grant",
            "ROLE=TOPIC",
            "Let a role produce to a topic; 'orders.*' allows every topic with this prefix, '*' all; can be repeated.",
        ),
    ] = None,
    relay_role: Annotated[
        str | None, option("--relay-role", "ROLE", "Let a role run the relay, and retry and discard dead rows.")
    ] = None,
    print_sql: Annotated[
        bool, typer.Option("--print-sql", help="Print the SQL that would run, for a review, and change nothing.")
    ] = False,
) -> None:
    """Create or upgrade the outbox in a database.

    Creates the function moldau.produce, and the tables behind it. The same command again changes nothing, and upgrades
    an older version. The owner may produce to all topics, other roles need --grant.

    moldau outbox install postgresql://localhost/shop --grant 'app=orders'
    """
    topic_grants = [_parse_grant(each) for each in grants or ()]

    async def operation(connection: "Connection") -> None:
        from moldau.outbox.install import install, plan_install

        if print_sql:
            plan = await plan_install(connection, schema, grants=topic_grants, relay_role=relay_role)
            out_console.print(f"BEGIN;\n\n{plan.sql}\nCOMMIT;", markup=False)
            return
        plan = await install(connection, schema, grants=topic_grants, relay_role=relay_role)
        where = f"in the schema {schema} of the database {connection.info.dbname}"
        if plan.previous_version == 0:
            out_console.print(f"The outbox was installed {where} (version {plan.version}).", markup=False)
            print_notice(f"Produce in SQL: SELECT {schema}.produce('orders', 'key', 'value');")
        elif plan.previous_version < plan.version:
            versions = f"version {plan.previous_version} to {plan.version}"
            out_console.print(f"The outbox was upgraded {where} from {versions}.", markup=False)
        else:
            out_console.print(f"The outbox is already installed {where} (version {plan.version}).", markup=False)
        for role, topic in topic_grants:
            out_console.print(f"{role} may produce to {'all topics' if topic == '*' else topic}.", markup=False)
        if relay_role is not None:
            out_console.print(f"{relay_role} may run the relay.", markup=False)

    run_in_database(database_url, operation)


def _parse_grant(text: str) -> TopicGrant:
    role, equals, topic = text.rpartition("=")
    if not role or not equals or not topic:
        raise typer.BadParameter(f"{text!r} is not ROLE=TOPIC", param_hint="--grant")
    return TopicGrant(role, topic)
