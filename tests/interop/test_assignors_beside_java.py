"""Moldau's assignors compared with Kafka's on random groups over several generations."""

import random
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from apache_kafka import ApacheKafka, available

from moldau.client.group.assignors import PreviousAssignment, get_assignor
from moldau.client.group.sticky_assignment import Assignments, SubscribedMember
from moldau.wire.consumer_protocol import Subscription, decode_assignment, encode_subscription

SOURCE = Path(__file__).parent / "java_assignors" / "Assignors.java"
LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
GROUPS = 150

Assign = Callable[[str, Mapping[str, int], Sequence[SubscribedMember]], Assignments]


@pytest.fixture(scope="module")
def java_assign() -> Iterator[Assign]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka's clients are not there: {reason}")
    process = subprocess.Popen(
        ["java", "-Xmx256m", "-XX:+UseSerialGC", LOG_LEVEL, "-cp", ApacheKafka.classpath(), str(SOURCE)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    questions, answers = process.stdin, process.stdout

    def assign(name: str, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]) -> Assignments:
        topics = " ".join(f"{topic}:{count}" for topic, count in partition_counts.items())
        shown = " ".join(
            f"{each.member_id}/{each.instance_id or ''}/{encode_subscription(each.subscription).hex()}"
            for each in members
        )
        questions.write(f"{name}\t{topics}\t{shown}\n")
        questions.flush()
        response = dict(each.split("/") for each in answers.readline().split())
        return {
            who: sorted(decode_assignment(bytes.fromhex(what)).partitions) for who, what in sorted(response.items())
        }

    yield assign
    questions.close()
    process.wait(30)


def groups(chance: random.Random, *, equal: bool) -> Iterator[tuple[dict[str, int], dict[str, set[str]]]]:
    """Yields the same topics with members that join, leave and change their subscription."""
    topics = {f"t{number}": chance.randint(1, 8) for number in range(chance.randint(1, 5))}
    for _ in range(4):
        everybody = [f"m{number}" for number in range(8)]
        present = chance.sample(everybody, chance.randint(1, 6))
        same = set(chance.sample(sorted(topics), chance.randint(1, len(topics))))
        yield (
            topics,
            {
                who: same if equal else set(chance.sample(sorted(topics), chance.randint(1, len(topics))))
                for who in present
            },
        )


def members_of(
    name: str, wants: Mapping[str, set[str]], had: Mapping[str, PreviousAssignment], static: bool = False
) -> list[SubscribedMember]:
    assignor = get_assignor(name)
    found = []
    for who, topics in wants.items():
        before = had.get(who, PreviousAssignment())
        kept = tuple(each for each in before.partitions if each[0] in topics) if assignor.is_cooperative else ()
        subscription = Subscription(tuple(sorted(topics)), assignor.user_data(before), kept, before.generation_id)
        found.append(SubscribedMember(who, subscription, f"i{who}" if static and who in ("m1", "m4") else None))
    return found


@pytest.mark.parametrize("name", ["range", "roundrobin"])
@pytest.mark.parametrize("static", [False, True])
def test_range_and_roundrobin_match_java(java_assign: Assign, name: str, static: bool) -> None:
    for seed in range(GROUPS):
        for topics, wants in groups(random.Random(seed), equal=seed % 2 == 0):
            members = members_of(name, wants, {}, static)
            ours = get_assignor(name).assign(topics, members)
            assert dict(sorted(ours.items())) == java_assign(name, topics, members), seed


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "unequal"])
def test_sticky_is_as_even_and_as_sticky_as_java(java_assign: Assign, equal: bool) -> None:
    ours_moved = java_moved = 0
    for seed in range(GROUPS):
        had: dict[str, PreviousAssignment] = {}
        for generation, (topics, wants) in enumerate(groups(random.Random(seed), equal=equal), 1000):
            members = members_of("sticky", wants, had)
            ours = get_assignor("sticky").assign(topics, members)
            java = java_assign("sticky", topics, members)
            had_before, had = (
                had,
                had | {who: PreviousAssignment(tuple(some), generation) for who, some in ours.items()},
            )
            if not is_allowed(java, wants):
                # Java may return a partition that a member owned long ago and no longer subscribes to.
                continue
            assert sorted(each for some in ours.values() for each in some) == sorted(
                each for some in java.values() for each in some
            )
            # A lower sum of squares is more even; no assignment has a lower one than ours.
            assert squares(ours) <= squares(java), seed
            if equal:
                assert squares(ours) == squares(java), seed
                assert moved(ours, had_before) <= moved(java, had_before), seed
            if squares(ours) == squares(java):
                ours_moved += moved(ours, had_before)
                java_moved += moved(java, had_before)
    assert ours_moved <= java_moved


@pytest.mark.parametrize("equal", [True, False], ids=["equal", "unequal"])
def test_cooperative_sticky_withholds_what_is_still_owned(java_assign: Assign, equal: bool) -> None:
    name = "cooperative-sticky"
    for seed in range(GROUPS):
        had: dict[str, PreviousAssignment] = {}
        for generation, (topics, wants) in enumerate(groups(random.Random(seed), equal=equal), 1000):
            members = members_of(name, wants, had)
            ours, java = get_assignor(name).assign(topics, members), java_assign(name, topics, members)
            owner = {each: who.member_id for who in members for each in who.subscription.owned_partitions}
            for assigned in (ours, java):
                for who, some in assigned.items():
                    assert all(owner.get(each, who) == who for each in some), seed
            if equal:
                assert sum(map(len, ours.values())) >= sum(map(len, java.values())), seed
            had = {who: PreviousAssignment(tuple(some), generation) for who, some in ours.items()}


def is_allowed(assignments: Assignments, wants: Mapping[str, set[str]]) -> bool:
    return all(topic in wants[who] for who, some in assignments.items() for topic, _ in some)


def squares(assignments: Assignments) -> int:
    return sum(len(some) ** 2 for some in assignments.values())


def moved(assignments: Assignments, had: Mapping[str, PreviousAssignment]) -> int:
    """Returns how many partitions were taken from members that are still in the group."""
    owner: dict[tuple[str, int], tuple[int, str]] = {}
    for who, before in had.items():
        for each in before.partitions if who in assignments else ():
            owner[each] = max(owner.get(each, (-1, "")), (before.generation_id, who))
    now = {each: who for who, some in assignments.items() for each in some}
    return sum(1 for each, (_, who) in owner.items() if each in now and now[each] != who)
