"""The URL of a Postgres store, and its password, which must not appear in logs, errors and DescribeConfigs."""

import re
from urllib.parse import unquote

SCHEMES = ("postgresql://", "postgres://")
STORES = "files, memory, or a URL such as postgresql://user@host/database"
SCHEMA_BYTES_MAX = 63
"""Postgres cuts longer names off."""
HIDDEN = "****"

_URL = re.compile(r"(?P<scheme>postgres(?:ql)?://)(?:(?P<user>[^/?#@]*)@)?(?P<address>[^?]*)(?:\?(?P<options>.*))?")
_SECRET_IN_TEXT = re.compile(r"(?<=://)([^:\s'\"]*):([^\s'\"]*)@|\b((?:ssl)?password=)([^&\s'\"]*)")


def is_postgres_url(store: str) -> bool:
    return store.startswith(SCHEMES)


def check_store(store: str) -> str | None:
    """Returns why this is no valid store; None if it is valid."""
    matched = _URL.fullmatch(store)
    if store in ("files", "memory") or (matched is not None and "@" not in matched["address"]):
        return None
    return f"Expected {STORES}"


def check_schema(schema: str) -> str | None:
    """Returns why this cannot be the name of a Postgres schema; None if it can."""
    if not 0 < len(schema.encode()) <= SCHEMA_BYTES_MAX or "\0" in schema:
        return f"Expected a name of 1 to {SCHEMA_BYTES_MAX} bytes"
    if schema.lower().startswith("pg_") or schema in ("public", "information_schema"):
        return "Expected a schema that only this node uses"
    return None


def split_password(url: str) -> tuple[str, str | None]:
    """Returns the URL without its password, and the password; None if the URL has none."""
    matched = _URL.fullmatch(url)
    if matched is None:
        return url, None
    password: str | None = None
    user, _, in_user = (matched["user"] or "").partition(":")
    if in_user:
        password = unquote(in_user)
    options = []
    for option in (matched["options"] or "").split("&"):
        name, _, value = option.partition("=")
        if name == "password":
            password = unquote(value)
        elif option:
            options.append(option)
    parts = [
        matched["scheme"],
        f"{user}@" if user else "",
        matched["address"],
        "?" if options else "",
        "&".join(options),
    ]
    return "".join(parts), password


def hide_password(text: str) -> str:
    """Returns a text with the passwords of all URLs in it replaced."""
    return _SECRET_IN_TEXT.sub(lambda m: f"{m[3]}{HIDDEN}" if m[3] else f"{m[1]}:{HIDDEN}@", text)
