"""A group that one test has for itself, with members of any library; and the records that it consumes."""

import dataclasses
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from confluent_kafka import Producer
from group_member import DEADLINE_S, Library, Member, Options, Partition, eventually
from group_observer import Observer

from support.topics import QUIET, unique


class Group:
    def __init__(self, bootstrap: str, library: Library) -> None:
        self.bootstrap = bootstrap
        self.library = library
        self.id = unique("group")
        self.members: list[Member] = []

    def member(self, *topics: str, library: Library | None = None, **options: Any) -> Member:
        """A consumer of the group, already polling; `options` are those of Options."""
        wanted = Options(self.id, topics, client_id=f"member-{len(self.members)}")
        wanted = dataclasses.replace(wanted, **options)
        member = (library or self.library).member(self.bootstrap, wanted)
        self.members.append(member)
        return member

    def settle(self, observer: Observer) -> None:
        """Waits until no rebalance is under way, and the broker and all members that are left say the same."""

        def agreed() -> bool:
            seen = observer.describe(self.id)
            known = {each.client_id: each.assignment for each in seen.members}
            left = [member for member in self.members if not member.closed]
            return seen.state == "Stable" and known == {m.options.client_id: m.assignment for m in left}

        eventually(agreed, lambda: f"not settled: {observer.describe(self.id)}")

    def close(self) -> None:
        """Ends all members, at once because each takes its time; none may have run into an unexpected error."""
        self._close_members()
        errors = {member.options.client_id: member.errors for member in self.members if member.errors}
        assert not errors, f"members ran into errors: {errors}"

    def _close_members(self) -> None:
        left = [member for member in self.members if not member.closed]
        if left:
            with ThreadPoolExecutor(len(left)) as pool:
                list(pool.map(Member.close, left))

    def __enter__(self) -> "Group":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._close_members()


def send(bootstrap: str, partitions: Iterable[Partition], count: int, word: str = "record") -> list[bytes]:
    """Produces `count` records to each of the partitions; returns their values, which are all different."""
    producer = Producer({"bootstrap.servers": bootstrap, **QUIET})
    values = []
    for topic, partition in sorted(partitions):
        for number in range(count):
            value = f"{word} {topic} {partition} {number}".encode()
            producer.produce(topic, value, partition=partition)
            values.append(value)
    assert producer.flush(DEADLINE_S) == 0
    return values


def receive(members: Iterable[Member], values: Iterable[bytes]) -> None:
    """Waits until all the values have come to some member, and fails if one of them came twice."""
    members, wanted = list(members), set(values)

    def got() -> list[bytes]:
        return [value for member in members for value in member.values() if value in wanted]

    eventually(lambda: set(got()) == wanted, lambda: f"{len(set(got()))} of {len(wanted)} records came")
    assert len(got()) == len(wanted), "records came twice"
