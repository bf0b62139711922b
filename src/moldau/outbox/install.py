"""Installs and upgrades the outbox."""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.outbox.database import Connection, execute, fetch_one, find_version, translate_errors
from moldau.outbox.errors import OutboxError
from moldau.outbox.schema import DEFAULT_SCHEMA, STEPS, TopicGrant, install_sql

_INSTALL_LOCK = 5_023_117_940_816
"""The advisory lock that lets two installations run one after the other."""


class InstallPlan(NamedTuple):
    previous_version: int
    """0 if there was no outbox."""
    version: int
    sql: str


async def plan_install(
    connection: Connection,
    schema: str = DEFAULT_SCHEMA,
    *,
    grants: Sequence[TopicGrant] = (),
    relay_role: str | None = None,
    steps: Sequence[str] = STEPS,
) -> InstallPlan:
    with translate_errors():
        version = await find_version(connection, schema)
        for role in {*(each.role for each in grants), *([relay_role] if relay_role else [])}:
            (exists,) = await fetch_one(
                connection, "SELECT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = %s)", (role,)
            )
            if not exists:
                raise OutboxError(f"the role {role!r} does not exist: CREATE ROLE it first")
    return InstallPlan(
        version, len(steps), install_sql(schema, version, grants=grants, relay_role=relay_role, steps=steps)
    )


async def install(
    connection: Connection,
    schema: str = DEFAULT_SCHEMA,
    *,
    grants: Sequence[TopicGrant] = (),
    relay_role: str | None = None,
    steps: Sequence[str] = STEPS,
) -> InstallPlan:
    """Installs or upgrades the outbox in one transaction, and returns what ran."""
    with translate_errors():
        (is_standby,) = await fetch_one(connection, "SELECT pg_is_in_recovery()")
        if is_standby:
            raise OutboxError("this server is a standby: install the outbox on the primary")
        async with connection.transaction():
            await execute(connection, "SELECT pg_advisory_xact_lock(%s)", (_INSTALL_LOCK,))
            plan = await plan_install(connection, schema, grants=grants, relay_role=relay_role, steps=steps)
            # Without parameters, several statements may be in one query.
            await execute(connection, plan.sql)
    return plan
