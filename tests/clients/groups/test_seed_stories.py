"""Basic group behaviour with librdkafka: a single consumer, group features one by one, and the coordinator's errors."""

import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, TopicPartition
from group_member import DEADLINE_S, HEARTBEAT_MS, Committed, Library, eventually, partitions_of, share
from group_observer import ILLEGAL_GENERATION, NONE, REBALANCE_IN_PROGRESS, UNKNOWN_MEMBER_ID, Observer, RawMember
from group_under_test import Group, receive, send

from support.broker_process import BrokerProcess
from support.topics import QUIET, Topics, unique


@contextmanager
def consuming(bootstrap: str, group: str, **settings: Any) -> Iterator[Consumer]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **QUIET,
            **settings,
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def read(consumer: Consumer, count: int) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} messages came"
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


# A consumer by itself


def test_consumer_basic(bootstrap: str, topics: Topics) -> None:
    """Finds its coordinator, joins, is assigned the partition, and reads a message."""
    topic = topics.create()
    (value,) = send(bootstrap, [(topic, 0)], 1)
    with consuming(bootstrap, unique("group")) as consumer:
        consumer.subscribe([topic])
        (message,) = read(consumer, 1)
        assert (message.topic(), message.partition(), message.offset()) == (topic, 0, 0)
        assert message.value() == value
        assert consumer.assignment() == [TopicPartition(topic, 0)]
        assert consumer.memberid()


def test_consumer_multiple_messages(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    values = send(bootstrap, [(topic, 0)], 100)
    with consuming(bootstrap, unique("group")) as consumer:
        consumer.subscribe([topic])
        messages = read(consumer, 100)
        assert [message.value() for message in messages] == values
        assert [message.offset() for message in messages] == list(range(100))


def test_consumer_from_offset(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    values = send(bootstrap, [(topic, 0)], 10)
    with consuming(bootstrap, unique("group")) as consumer:
        consumer.assign([TopicPartition(topic, 0, 5)])
        assert [message.value() for message in read(consumer, 5)] == values[5:]


def test_offset_commit_fetch(bootstrap: str, topics: Topics) -> None:
    topic, group = topics.create(), unique("group")
    values = send(bootstrap, [(topic, 0)], 10)
    with consuming(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        read(consumer, 4)
        (done,) = consumer.commit(asynchronous=False)
        assert (done.error, done.offset) == (None, 4)
        (fetched,) = consumer.committed([TopicPartition(topic, 0)], timeout=DEADLINE_S)
        assert fetched.offset == 4
    with consuming(bootstrap, group) as consumer:
        consumer.subscribe([topic])
        assert [message.value() for message in read(consumer, 6)] == values[4:]


# Groups


@pytest.mark.parametrize("assignor", ["range", "roundrobin", "sticky", "cooperative-sticky"])
def test_automatic_partition_assignment(
    bootstrap: str, topics: Topics, confluent_group: Group, kafka_python: Library, observer: Observer, assignor: str
) -> None:
    topic, group = topics.create(4), confluent_group
    library = group.library if assignor in group.library.assignors else kafka_python
    members = [group.member(topic, library=library, assignor=assignor) for _ in range(2)]
    share(members, partitions_of(topic, 4))
    group.settle(observer)
    assert observer.describe(group.id).protocol == assignor
    receive(members, send(bootstrap, partitions_of(topic, 4), 3))


def test_automatic_rebalance_when_members_join_and_leave(
    topics: Topics, confluent_group: Group, observer: Observer
) -> None:
    topic, group = topics.create(4), confluent_group
    everything = partitions_of(topic, 4)
    first = group.member(topic)
    share([first], everything)
    group.settle(observer)
    generations = [observer.generation(group.id)]
    second = group.member(topic)
    share([first, second], everything)
    group.settle(observer)
    generations.append(observer.generation(group.id))
    second.close()
    share([first], everything)
    group.settle(observer)
    generations.append(observer.generation(group.id))
    assert generations[0] < generations[1] < generations[2]


DOOMED = """
from confluent_kafka import Consumer
consumer = Consumer({settings})
consumer.subscribe([{topic!r}])
while True:
    consumer.poll(0.1)
    print(len(consumer.assignment()), flush=True)
"""


def test_a_member_that_falls_silent_is_removed(
    topics: Topics, confluent_group: Group, observer: Observer, short_session_ms: int
) -> None:
    """A consumer's process is killed: it cannot leave, so its session has to run out."""
    topic, group = topics.create(4), confluent_group
    everything = partitions_of(topic, 4)
    settings = {
        "bootstrap.servers": group.bootstrap,
        "group.id": group.id,
        "client.id": "doomed",
        # Long enough to be described after the kill.
        "session.timeout.ms": 4 * short_session_ms,
        "heartbeat.interval.ms": HEARTBEAT_MS,
        "partition.assignment.strategy": "range",
        **QUIET,
    }
    script = textwrap.dedent(DOOMED).format(settings=settings, topic=topic)
    doomed = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert doomed.stdout is not None
        for line in doomed.stdout:
            if line == "4\n":
                break
        survivor = group.member(topic)
        eventually(lambda: len(survivor.assignment) == 2, "the partitions are not shared")
    finally:
        doomed.kill()
        doomed.communicate()
    assert {each.client_id for each in observer.describe(group.id).members} == {"member-0", "doomed"}
    share([survivor], everything)
    assert {each.client_id for each in observer.describe(group.id).members} == {"member-0"}


def test_group_state_survives_a_restart_of_the_coordinator(restartable: BrokerProcess, confluent: Library) -> None:
    """Members, generation, assignments and offsets are the coordinator's again after kill -9: nobody rejoins."""
    topic = Topics(restartable.bootstrap).create()
    group = unique("group")
    member = RawMember(restartable.bootstrap, group)
    assert member.join()["error_code"] == NONE
    assignment = b"whatever the leader decided"
    assert member.sync({member.member_id: assignment})["assignment"] == assignment
    assert member.commit(topic, 5) == NONE
    member.close()

    restartable.kill()
    restartable.start()

    back = RawMember(restartable.bootstrap, group)
    back.member_id, back.generation = member.member_id, member.generation
    eventually(lambda: back.heartbeat() == NONE, "the member is not known any more")
    assert back.sync({})["assignment"] == assignment
    assert back.heartbeat(member.generation - 1) == ILLEGAL_GENERATION
    assert back.commit(topic, 6) == NONE
    back.close()
    admin = confluent.admin(restartable.bootstrap)
    assert admin.offsets(group) == {(topic, 0): Committed(6)}


def test_many_groups_consume_side_by_side(bootstrap: str, topics: Topics, confluent: Library) -> None:
    """Each gets everything, at its own pace; what one commits is not the others'."""
    topic = topics.create(2)
    everything = partitions_of(topic, 2)
    values = send(bootstrap, everything, 10)
    with ExitStack() as stack:
        groups = [stack.enter_context(Group(bootstrap, confluent)) for _ in range(5)]
        members = [group.member(topic) for group in groups]
        for number, member in enumerate(members):
            receive([member], values)
            member.commit({(topic, 0): Committed(number)})
        assert [member.committed((topic, 0)) for member in members] == [0, 1, 2, 3, 4]
        members[0].close()
        more = send(bootstrap, everything, 2, "more")
        for member in members[1:]:
            receive([member], more)


def test_static_membership(topics: Topics, confluent_group: Group, observer: Observer) -> None:
    topic, group = topics.create(4), confluent_group
    everything = partitions_of(topic, 4)
    first, second = (group.member(topic, instance_id=f"instance-{number}") for number in range(2))
    share([first, second], everything)
    group.settle(observer)
    generation, had, told = observer.generation(group.id), second.assignment, list(first.events)
    second.close()
    again = group.member(topic, instance_id="instance-1")
    share([first, again], everything)
    assert (again.assignment, observer.generation(group.id)) == (had, generation)
    assert first.events == told


def test_incremental_cooperative_rebalancing(bootstrap: str, topics: Topics, confluent_group: Group) -> None:
    topic, group = topics.create(4), confluent_group
    everything = partitions_of(topic, 4)
    first = group.member(topic, assignor="cooperative-sticky")
    share([first], everything)
    second = group.member(topic, assignor="cooperative-sticky")
    share([first, second], everything)
    assert first.told("revoked") == [second.assignment], "more was revoked than what moved"
    receive([first, second], send(bootstrap, everything, 3))


# The coordinator's errors


@pytest.fixture
def raw(bootstrap: str) -> Iterator[RawMember]:
    """The only member of a stable group."""
    member = RawMember(bootstrap, unique("group"))
    assert member.join()["error_code"] == NONE
    assert member.leads
    assert member.sync({member.member_id: b"all"})["assignment"] == b"all"
    assert member.heartbeat() == NONE
    yield member
    member.close()


def test_unknown_member_id(topics: Topics, raw: RawMember) -> None:
    topic = topics.create()
    assert raw.heartbeat(member_id="nobody") == UNKNOWN_MEMBER_ID
    assert raw.commit(topic, 1, member_id="nobody") == UNKNOWN_MEMBER_ID
    assert raw.leave(member_id="nobody") == UNKNOWN_MEMBER_ID
    stranger = RawMember(raw.bootstrap, raw.group)
    stranger.member_id = "nobody"
    assert stranger.join()["error_code"] == UNKNOWN_MEMBER_ID
    assert stranger.sync({}, generation=raw.generation)["error_code"] == UNKNOWN_MEMBER_ID
    stranger.close()
    assert raw.heartbeat() == NONE


def test_illegal_generation(topics: Topics, raw: RawMember) -> None:
    topic = topics.create()
    for generation in (raw.generation - 1, raw.generation + 1):
        assert raw.heartbeat(generation) == ILLEGAL_GENERATION
        assert raw.sync({}, generation)["error_code"] == ILLEGAL_GENERATION
        assert raw.commit(topic, 1, generation) == ILLEGAL_GENERATION
    assert raw.heartbeat() == NONE


def test_rebalance_in_progress(bootstrap: str, topics: Topics, raw: RawMember) -> None:
    """Told to the members of a group while another one joins, until they join again themselves."""
    topic = topics.create()
    other = RawMember(bootstrap, raw.group)
    other.get_member_id()
    assert raw.heartbeat() == NONE, "a member id alone began a rebalance"
    other.ask_to_join()
    eventually(lambda: raw.heartbeat() == REBALANCE_IN_PROGRESS, "nobody is told of the rebalance")
    assert raw.sync({})["error_code"] == REBALANCE_IN_PROGRESS
    assert raw.commit(topic, 1) == NONE, "what was consumed may be committed before joining again"
    before = raw.generation
    assert raw.join()["error_code"] == NONE
    assert other.joined()["error_code"] == NONE
    assert raw.generation == other.generation == before + 1
    assert raw.commit(topic, 2) == REBALANCE_IN_PROGRESS, "the group waits for its leader's assignment"
    assert raw.heartbeat() == NONE
    leader, follower = (raw, other) if raw.leads else (other, raw)
    assert leader.sync({leader.member_id: b"one", follower.member_id: b"two"})["assignment"] == b"one"
    assert follower.sync({})["assignment"] == b"two"
    assert (raw.heartbeat(), other.heartbeat()) == (NONE, NONE)
    assert other.leave() == NONE
    assert other.heartbeat() == UNKNOWN_MEMBER_ID
    assert raw.heartbeat() == REBALANCE_IN_PROGRESS
    other.close()
