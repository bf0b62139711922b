"""Moldau's codec and kio's agree on every message of every API and version."""

import random
from typing import Any

import pytest
from kio.serial import entity_reader

from moldau.wire.codec import Message, decoder, encoder
from moldau.wire.schema import EXTENSION_FIELDS
from support.random_messages import all_versions, random_tree, schema
from support.wire import entity, plain, write

SAMPLES = 5


def tree_of(value: Any) -> Any:
    """A decoded message as a plain tree, without Moldau's extension fields."""
    if isinstance(value, Message):
        own = {field.name for field in EXTENSION_FIELDS.get(type(value).__name__, ())}
        return {name: tree_of(each) for name, each in vars(value).items() if name not in own}
    if isinstance(value, list | tuple):
        return [tree_of(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize("kind", ["request", "response"])
@pytest.mark.parametrize(("api_key", "version"), list(all_versions()))
def test_both_codecs_agree(api_key: int, version: int, kind: str) -> None:
    shape = schema(api_key, version, kind)
    chance = random.Random(api_key * 1000 + version)
    for _ in range(SAMPLES):
        tree = random_tree(shape, chance)
        theirs = write(entity(shape, tree))
        assert tree_of(decoder(api_key, version, kind)(memoryview(theirs))) == tree

        ours = bytearray()
        encoder(api_key, version, kind)(ours, tree)
        decoded, size = entity_reader(shape)(bytes(ours), 0)
        assert size == len(ours)
        assert plain(decoded) == tree
