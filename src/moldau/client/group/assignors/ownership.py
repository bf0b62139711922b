"""Who owns what before an assignment, from what the members say: the newest generation is believed, and of two
that claim one partition in the same generation neither."""

from collections.abc import Iterable

from moldau.wire.consumer_protocol import Partition

OwnershipClaim = tuple[str, int, Iterable[Partition]]
"""A member, the generation it speaks of, and what it had in it."""


def resolve_owners(claims: Iterable[OwnershipClaim]) -> dict[str, list[Partition]]:
    newest: dict[Partition, tuple[int, str | None]] = {}
    for member_id, generation_id, partitions in claims:
        for partition in dict.fromkeys(partitions):
            generation, _ = newest.get(partition, (generation_id - 1, None))
            if generation_id > generation:
                newest[partition] = (generation_id, member_id)
            elif generation_id == generation:
                newest[partition] = (generation_id, None)
    owned: dict[str, list[Partition]] = {}
    for partition, (_, owner) in newest.items():
        if owner is not None:
            owned.setdefault(owner, []).append(partition)
    return owned
