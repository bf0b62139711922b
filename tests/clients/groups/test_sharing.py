"""Consumers of every library share the partitions of their topics as members join, leave or stop polling."""

import re
from collections import Counter

import pytest
from confluent_kafka.admin import NewTopic
from confluent_members import MAX_POLL_EXCEEDED
from group_member import DEADLINE_S, Library, Partition, Refused, eventually, partitions_of, share
from group_observer import Observer
from group_under_test import Group, receive, send

from support.topics import Topics, unique

ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")


def test_two_consumers_share_a_topic(bootstrap: str, topics: Topics, group: Group, observer: Observer) -> None:
    topic = topics.create(4)
    everything = partitions_of(topic, 4)
    first = group.member(topic)
    share([first], everything)
    sent = send(bootstrap, everything, 5, "alone")
    receive([first], sent)
    first.commit()

    second = group.member(topic)
    share([first, second], everything)
    sent += send(bootstrap, everything, 5, "together")
    receive([first, second], sent)
    for member in (first, second):
        assert {(r.topic, r.partition) for r in member.received if r.value.startswith(b"together")} == (
            member.assignment
        )
        member.commit()
    group.settle(observer)

    second.close()
    share([first], everything)
    sent += send(bootstrap, everything, 5, "alone again")
    receive([first, second], sent)
    assert Counter(first.values() + second.values()) == Counter(sent), "a committed record came again"


def test_a_third_consumer_joins_and_leaves(bootstrap: str, topics: Topics, group: Group, observer: Observer) -> None:
    topic = topics.create(6)
    everything = partitions_of(topic, 6)
    first, second = group.member(topic), group.member(topic)
    share([first, second], everything)
    group.settle(observer)
    before = observer.generation(group.id)
    third = group.member(topic)
    share([first, second, third], everything)
    group.settle(observer)
    assert observer.generation(group.id) > before
    receive([first, second, third], send(bootstrap, everything, 3))
    third.close()
    share([first, second], everything)
    assert len(observer.describe(group.id).members) == 2


def test_more_consumers_than_partitions_leave_one_idle_until_it_is_needed(
    bootstrap: str, topics: Topics, group: Group, observer: Observer
) -> None:
    topic = topics.create(1)
    first, second = group.member(topic), group.member(topic)
    share([first, second], [(topic, 0)])
    group.settle(observer)
    busy, idle = (first, second) if first.assignment else (second, first)
    receive([busy], send(bootstrap, [(topic, 0)], 3, "one"))
    busy.commit()
    busy.close()
    share([idle], [(topic, 0)])
    receive([idle], send(bootstrap, [(topic, 0)], 3, "other"))


def test_libraries_share_one_group(
    bootstrap: str, topics: Topics, confluent_group: Group, kafka_python: Library, aiokafka: Library, observer: Observer
) -> None:
    topic, group = topics.create(6), confluent_group
    everything = partitions_of(topic, 6)
    members = [group.member(topic)]
    members += [group.member(topic, library=library) for library in (kafka_python, aiokafka)]
    share(members, everything)
    receive(members, send(bootstrap, everything, 3))
    group.settle(observer)


# Assignors


def offers(library: Library, assignor: str) -> None:
    if assignor not in library.assignors:
        pytest.skip(f"{library.name} has no {assignor} assignor")


@pytest.mark.parametrize(
    ("assignor", "of_one", "of_other"),
    [
        ("range", {(0, 0), (0, 1), (1, 0), (1, 1)}, {(0, 2), (1, 2)}),
        ("roundrobin", {(0, 0), (0, 2), (1, 1)}, {(0, 1), (1, 0), (1, 2)}),
    ],
    ids=["range", "roundrobin"],
)
def test_the_assignor_that_members_name_assigns(
    topics: Topics,
    group: Group,
    observer: Observer,
    assignor: str,
    of_one: set[tuple[int, int]],
    of_other: set[tuple[int, int]],
) -> None:
    offers(group.library, assignor)
    names = sorted([topics.create(3), topics.create(3)])
    members = [group.member(*names, assignor=assignor) for _ in range(2)]
    wanted = {frozenset((names[topic], partition) for topic, partition in each) for each in (of_one, of_other)}
    eventually(
        lambda: {member.assignment for member in members} == wanted,
        lambda: f"assigned otherwise: {[sorted(member.assignment) for member in members]}",
    )
    group.settle(observer)
    assert observer.describe(group.id).protocol == assignor


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_every_assignor_shares_evenly_with_a_third_that_joins_and_leaves(
    bootstrap: str, topics: Topics, group: Group, observer: Observer, assignor: str
) -> None:
    offers(group.library, assignor)
    topic = topics.create(6)
    everything = partitions_of(topic, 6)
    members = [group.member(topic, assignor=assignor) for _ in range(2)]
    share(members, everything)
    third = group.member(topic, assignor=assignor)
    share([*members, third], everything)
    group.settle(observer)
    assert observer.describe(group.id).protocol == assignor
    receive([*members, third], send(bootstrap, everything, 2))
    third.close()
    share(members, everything)


@pytest.mark.parametrize("assignor", ["sticky", "cooperative-sticky"])
def test_a_sticky_assignor_moves_no_more_than_it_has_to(topics: Topics, group: Group, assignor: str) -> None:
    offers(group.library, assignor)
    if "stickiness" in group.library.lacks:
        pytest.skip(group.library.lacks["stickiness"])
    topic = topics.create(6)
    everything = partitions_of(topic, 6)
    first, second = (group.member(topic, assignor=assignor) for _ in range(2))
    share([first, second], everything)
    had = {first: first.assignment, second: second.assignment}
    third = group.member(topic, assignor=assignor)
    share([first, second, third], everything)
    for member, before in had.items():
        assert len(member.assignment) == 2
        assert member.assignment < before
    had = {first: first.assignment, second: second.assignment}
    third.close()
    share([first, second], everything)
    for member, before in had.items():
        assert member.assignment > before


def test_a_cooperative_member_keeps_what_stays_its_own_through_a_rebalance(
    bootstrap: str, topics: Topics, group: Group
) -> None:
    offers(group.library, "cooperative-sticky")
    topic = topics.create(4)
    everything = partitions_of(topic, 4)
    first = group.member(topic, assignor="cooperative-sticky")
    share([first], everything)
    second = group.member(topic, assignor="cooperative-sticky")
    share([first, second], everything)
    kept = first.assignment
    revoked = frozenset[Partition]().union(*first.told("revoked"))
    assert revoked == everything - kept, "what stayed was revoked in between"
    assert not frozenset[Partition]().union(*second.told("revoked"))
    receive([first, second], send(bootstrap, everything, 3))
    second.close()
    share([first], everything)
    assert frozenset().union(*first.told("revoked")) == revoked
    assert not first.told("lost")


def test_an_eager_member_gives_up_everything_before_it_is_assigned_again(topics: Topics, group: Group) -> None:
    topic = topics.create(4)
    everything = partitions_of(topic, 4)
    first = group.member(topic)
    share([first], everything)
    second = group.member(topic)
    share([first, second], everything)
    told = [event for event in first.events if event.partitions]
    # On a busy machine, kafka-python joins again, which is one more rebalance.
    assert [event.kind for event in told] == [*["assigned", "revoked"] * (len(told) // 2), "assigned"]
    assert len(told) > 1
    for assigned, revoked in zip(told[::2], told[1::2], strict=False):
        assert revoked.partitions == assigned.partitions
    assert (told[0].partitions, told[-1].partitions) == (everything, first.assignment)


# What is subscribed to


def test_a_pattern_takes_in_the_topics_that_match_and_those_created_later(
    bootstrap: str, topics: Topics, group: Group
) -> None:
    prefix = unique("pattern")
    topics.create(1)
    before, later = f"{prefix}-a", f"{prefix}-b"
    create(topics, before, 2)
    members = [group.member(pattern=f"{re.escape(prefix)}-.*") for _ in range(2)]
    share(members, partitions_of(before, 2))
    create(topics, later, 2)
    everything = partitions_of(before, 2) | partitions_of(later, 2)
    share(members, everything)
    receive(members, send(bootstrap, everything, 3))


def create(topics: Topics, name: str, partitions: int) -> None:
    new = NewTopic(name, num_partitions=partitions, replication_factor=1)
    topics.admin.create_topics([new])[name].result(DEADLINE_S)


def test_members_may_subscribe_to_different_topics(bootstrap: str, topics: Topics, group: Group) -> None:
    left, right = topics.create(2), topics.create(2)
    first, second = group.member(left), group.member(right)
    share([first], partitions_of(left, 2))
    share([second], partitions_of(right, 2))
    receive([first], send(bootstrap, partitions_of(left, 2), 2))
    receive([second], send(bootstrap, partitions_of(right, 2), 2))


# A member that does not poll


def test_a_consumer_that_polls_too_late_loses_its_partitions_and_may_come_back(
    bootstrap: str, topics: Topics, group: Group, short_session_ms: int
) -> None:
    topic = topics.create(4)
    everything = partitions_of(topic, 4)
    slow = group.member(topic, session_timeout_ms=short_session_ms, max_poll_interval_ms=short_session_ms)
    share([slow], everything)
    quick = group.member(topic)
    share([slow, quick], everything)
    slow.stall()
    share([quick], everything)
    receive([quick], send(bootstrap, everything, 3))
    quick.commit()
    slow.resume()
    share([slow, quick], everything)
    slow.errors = [each for each in slow.errors if not (isinstance(each, Refused) and each.code == MAX_POLL_EXCEEDED)]
