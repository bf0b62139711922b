"""Random ids, from a source that is given: a simulated cluster must make the same ones every time."""

from collections.abc import Container
from typing import Protocol
from uuid import UUID


class Randomness(Protocol):
    """The part of `random.Random` that decisions use."""

    def getrandbits(self, k: int, /) -> int: ...

    def randrange(self, start: int, /) -> int: ...


def random_uuid(random: Randomness, taken: Container[UUID] = ()) -> UUID:
    """A version 4 UUID, so never one of the reserved ids that are all zeros up to their last bits.

    Kafka's tools take ids as URL-safe base64 and would read one that begins with '-' as an option.
    """
    while True:
        made = UUID(int=random.getrandbits(128), version=4)
        if made not in taken and not _starts_with_dash(made):
            return made


def _starts_with_dash(made: UUID) -> bool:
    return made.bytes[0] >> 2 == 62
