"""URLs of a Postgres store: which are valid, and that their passwords are never shown."""

import pytest

from moldau.errors import InvalidConfigError
from moldau.settings.broker import BrokerSettings
from moldau.settings.config_entries import ConfigLayers
from moldau.settings.postgres_url import check_schema, check_store, hide_password, split_password
from moldau.settings.sources import build_settings

SECRET = "s3cret"


@pytest.mark.parametrize(
    ("url", "without", "password"),
    [
        ("postgresql://host/db", "postgresql://host/db", None),
        ("postgres://user@host:1/db", "postgres://user@host:1/db", None),
        ("postgresql://user:s3cret@host/db", "postgresql://user@host/db", "s3cret"),
        ("postgresql://:s3cret@host/db", "postgresql://host/db", "s3cret"),
        ("postgresql://user:a%40b%2Fc@host/db", "postgresql://user@host/db", "a@b/c"),
        ("postgresql://user:s3cret@a:1,b:2/db?x=1", "postgresql://user@a:1,b:2/db?x=1", "s3cret"),
        ("postgresql:///db?host=/run&password=a%26b&user=u", "postgresql:///db?host=/run&user=u", "a&b"),
        ("postgresql://", "postgresql://", None),
        ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db", None),
        ("files", "files", None),
    ],
)
def test_a_password_is_taken_out_of_a_url(url: str, without: str, password: str | None) -> None:
    assert check_store(url) is None
    assert split_password(url) == (without, password)


@pytest.mark.parametrize(
    "store", ["", "file", "mysql://host/db", "postgresql:/host", "postgresql://user:a/b@host/db", "host=a dbname=b"]
)
def test_other_stores_are_refused(store: str) -> None:
    with pytest.raises(
        InvalidConfigError, match="expected files, memory, or a URL such as postgresql://user@host/database"
    ):
        build_settings(flags={"store": store})


@pytest.mark.parametrize("schema", ["", "pg_moldau", "public", "x" * 64, "ž" * 32])
def test_schemas_that_cannot_be_used_are_refused(schema: str) -> None:
    assert check_schema(schema) is not None
    with pytest.raises(InvalidConfigError, match=r"postgres\.schema"):
        build_settings(flags={"postgres.schema": schema})


def test_a_schema_may_have_any_other_name() -> None:
    assert check_schema("x" * 63) is None
    assert check_schema('my "schema"') is None


def test_no_setting_shows_the_password() -> None:
    settings = build_settings(environment={"MOLDAU_STORE": f"postgresql://user:{SECRET}@host/db"})
    assert settings.postgres_password == SECRET
    assert settings.store == "postgresql://user@host/db"
    assert SECRET not in repr(settings)
    assert settings.log_dir == "postgresql://user@host/db#moldau"
    for entry in ConfigLayers(settings, {}, {}).describe_broker():
        assert SECRET not in str(entry)


def test_a_password_of_its_own_is_kept() -> None:
    settings = BrokerSettings(store="postgresql://user@host/db", postgres_password=SECRET)
    assert (settings.store, settings.postgres_password) == ("postgresql://user@host/db", SECRET)


@pytest.mark.parametrize(
    "store",
    [
        f"postgresql://user:{SECRET}/x@host/db",
        f"mysql://user:{SECRET}@host/db",
        f"postgres:/user:{SECRET}@host/?password={SECRET}",
    ],
)
def test_errors_hide_the_password(store: str) -> None:
    with pytest.raises(InvalidConfigError) as raised:
        build_settings(flags={"store": store})
    if "://" in store:
        assert SECRET not in str(raised.value)
    assert f"password={SECRET}" not in str(raised.value)


def test_texts_without_a_password_stay_as_they_are() -> None:
    for text in ("postgresql://user@host/db", "10:20", "http://host:80/x", "a password is needed"):
        assert hide_password(text) == text
