"""The SQL of the outbox, without a server."""

import pytest

from moldau.outbox.errors import OutboxError
from moldau.outbox.schema import STEPS, TopicGrant, install_sql, literal, quote


@pytest.mark.parametrize("name", ["", "Moldau", "a-b", "a b", 'a"b', "1a", "pg_moldau", "x" * 64])
def test_a_schema_must_have_a_plain_name(name: str) -> None:
    with pytest.raises(OutboxError, match="no name for the schema"):
        install_sql(name, 0)


def test_names_and_texts_are_quoted() -> None:
    assert quote('a"b') == '"a""b"'
    assert literal("it's") == "'it''s'"
    assert literal("a\\b") == "E'a\\\\b'"


def test_an_installed_version_gets_only_the_newer_steps() -> None:
    assert "CREATE TABLE" in install_sql("moldau", 0)
    current = install_sql("moldau", len(STEPS))
    assert "CREATE TABLE" not in current
    assert "CREATE OR REPLACE FUNCTION" in current
    upgrade = install_sql("moldau", len(STEPS), steps=(*STEPS, "ALTER TABLE {schema}.outbox ADD COLUMN extra text;"))
    assert 'ALTER TABLE "moldau".outbox ADD COLUMN extra text;' in upgrade
    assert f"SET version = {len(STEPS) + 1}" in upgrade


def test_grants_are_part_of_the_sql() -> None:
    sql = install_sql("events", 0, grants=[TopicGrant("app", "orders.*")], relay_role="relay")
    assert 'GRANT USAGE ON SCHEMA "events" TO "app"' in sql
    assert """VALUES ('"app"'::regrole, 'orders.*')""" in sql
    assert 'GRANT SELECT, UPDATE ON "events".outbox_state TO "relay"' in sql
