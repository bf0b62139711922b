"""A role that may create functions in `public`, as every role before Postgres 15, runs nothing as another role."""

import asyncio
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.outbox import RelayProcess, moldau
from support.postgres import PostgresServer
from support.postgres_proxy import PostgresProxy
from support.topics import unique

COMMANDS = (("status",), ("dead",), ("retry", "--all"), ("discard", "--all", "--yes"), ("install",))

FUNCTION = """CREATE FUNCTION public.hashtextextended(text, integer) RETURNS bigint LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO public.calls VALUES (current_user); RETURN 7; END $$"""
"""Fits a call with the seed 0 better than the function of Postgres, whose seed is a bigint."""


@pytest.fixture
def calls(outbox: str) -> Iterator[Any]:
    """Creates the function as another role. The result returns who has called it."""
    role = unique("role").replace("-", "_")
    with psycopg.connect(outbox, autocommit=True) as owner:
        owner.execute(f'CREATE ROLE "{role}" LOGIN; GRANT CREATE, USAGE ON SCHEMA public TO "{role}"'.encode())
        with psycopg.connect(outbox.replace("moldau@", f"{role}@"), autocommit=True) as user:
            user.execute("CREATE TABLE public.calls (name text)")
            user.execute("GRANT ALL ON public.calls TO PUBLIC")
            user.execute(FUNCTION)
        yield lambda: owner.execute("SELECT name FROM public.calls").fetchall()
        owner.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'.encode())


async def run_commands(outbox: str, postgres: PostgresServer, *, is_pooled: bool) -> None:
    async with PostgresProxy(postgres) as proxy:
        proxy.replaces_pid = is_pooled
        url = f"{proxy.url.rpartition('/')[0]}/{outbox.rpartition('/')[2]}?sslmode=disable&gssencmode=disable"
        for command, *arguments in COMMANDS:
            done = await asyncio.to_thread(moldau, "outbox", command, url, *arguments)
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("is_pooled", [False, True], ids=["direct", "behind a pooler"])
def test_commands_call_no_function_of_another_role(
    outbox: str, calls: Any, postgres: PostgresServer, is_pooled: bool
) -> None:
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute("SELECT hashtextextended('x', 0)")
    assert calls() == [("moldau",)], "the trap works"
    with psycopg.connect(outbox, autocommit=True) as connection:
        # The status compares the locks of the database with the relay's.
        connection.execute("SELECT pg_advisory_lock(1)")
        asyncio.run(run_commands(outbox, postgres, is_pooled=is_pooled))
    assert len(calls()) == 1


@pytest.mark.clients
def test_the_relay_calls_no_function_of_another_role(
    outbox: str, calls: Any, relay: RelayProcess, bootstrap: str
) -> None:
    relay.start()
    relay.wait_for_output("The relay is running")
    assert calls() == []
