"""Random UUIDs from an injected source of randomness, so that simulations are deterministic."""

from collections.abc import Container
from typing import Protocol
from uuid import UUID


class Randomness(Protocol):
    """The methods of `random.Random` that decisions use."""

    def getrandbits(self, k: int, /) -> int: ...

    def randrange(self, start: int, /) -> int: ...


def random_uuid(random: Randomness, taken: Container[UUID] = ()) -> UUID:
    """Returns a version 4 UUID that is not in `taken`. Its base64 form does not start with '-', because Kafka's tools
    would parse it as an option."""
    while True:
        uuid = UUID(int=random.getrandbits(128), version=4)
        if uuid not in taken and uuid.bytes[0] >> 2 != 62:
            return uuid
