"""Random messages of any API and version, built from kio's schemas."""

import dataclasses
import random
import typing
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.static.constants import EntityType

from support.wire import without_none

ERROR_CODES = [code.value for code in ErrorCode]
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64, "timedelta_i32": 32}
UNSIGNED_BITS = {"uint16": 16, "uint32": 32}
YEAR_2100_MS = 4_102_444_800_000


def all_versions() -> Iterator[tuple[int, int]]:
    """Yields every API key and version with a request and a response."""
    for api_key, name in sorted(api_key_map.items()):
        for version, kinds in sorted(schema_name_map[name].items()):
            if EntityType.request in kinds and EntityType.response in kinds:
                yield api_key, version


def schema(api_key: int, version: int, kind: str) -> type:
    load = load_request_schema if kind == "request" else load_response_schema
    return typing.cast(type, load(api_key, version))


def random_tree(kind: type, chance: random.Random, depth: int = 0) -> dict[str, Any]:
    """A plain tree with a value for every field of the entity."""
    hints = typing.get_type_hints(kind)
    return {
        field.name: _random_value(hints[field.name], field.metadata, chance, depth)
        for field in dataclasses.fields(kind)
    }


def _random_value(hint: Any, metadata: typing.Mapping[str, Any], chance: random.Random, depth: int) -> Any:
    hint, nullable = without_none(hint)
    # A tagged field that is null is one that is absent, and then has its default; a time is null as -1.
    may_be_null = nullable and "tag" not in metadata and metadata.get("kafka_type") != "datetime_i64"
    if may_be_null and chance.random() < 0.3:
        return None
    if typing.get_origin(hint) is tuple:
        item = typing.get_args(hint)[0]
        without_null = {**metadata, "tag": None}
        count = chance.choice([0, 1, 2, 5]) if depth < 3 else chance.choice([0, 1])
        return [_random_value(without_none(item)[0], without_null, chance, depth + 1) for _ in range(count)]
    if dataclasses.is_dataclass(hint):
        return random_tree(typing.cast(type, hint), chance, depth + 1)
    return _random_primitive(metadata["kafka_type"], chance)


def _random_primitive(kafka_type: str, chance: random.Random) -> Any:
    if kafka_type in BITS:
        bits = BITS[kafka_type] - 1
        return chance.choice([0, 1, -1, 2**bits - 1, -(2**bits), chance.randrange(-(2**bits), 2**bits)])
    if kafka_type in UNSIGNED_BITS:
        return chance.randrange(2 ** UNSIGNED_BITS[kafka_type])
    if kafka_type in ("timedelta_i64", "datetime_i64"):
        return chance.randrange(YEAR_2100_MS)
    if kafka_type == "bool":
        return chance.random() < 0.5
    if kafka_type == "float64":
        return chance.uniform(-1e9, 1e9)
    if kafka_type == "error_code":
        return chance.choice(ERROR_CODES)
    if kafka_type == "uuid":
        return chance.choice([None, UUID(int=chance.getrandbits(128))])
    if kafka_type == "string":
        return chance.choice(["", "topic", "Vltava-řeka 水", "x" * chance.randrange(300)])
    if kafka_type in ("bytes", "records"):
        return chance.randbytes(chance.choice([0, 1, 100, 20_000]))
    raise LookupError(f"no random {kafka_type}")
