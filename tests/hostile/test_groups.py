"""Invalid group requests get Kafka's error code, keep their connection and do not affect another group."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from support.broker_process import BrokerProcess
from support.raw_group_member import (
    DELETE_GROUPS,
    DESCRIBE_GROUPS,
    FIND_COORDINATOR,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    LIST_GROUPS,
    MEMBER_ID_REQUIRED,
    NOT_COORDINATOR,
    OFFSET_COMMIT,
    OFFSET_DELETE,
    OFFSET_FETCH,
    SYNC_GROUP,
    RawGroupMember,
    codes_of,
    commit,
    commit_tree,
    committed,
    find_coordinator,
    join_tree,
    subscription,
    sync_tree,
)
from support.topics import Topics, unique
from support.wire import DELETE_RECORDS, WireClient, batch, produce, topic_id

UNKNOWN_TOPIC, METADATA_TOO_LARGE, ILLEGAL_GENERATION, INCONSISTENT_PROTOCOL = 3, 12, 22, 23
INVALID_GROUP_ID, UNKNOWN_MEMBER_ID, INVALID_SESSION_TIMEOUT, REBALANCING = 24, 25, 26, 27
INVALID_TOPIC, MESSAGE_TOO_LARGE = 17, 10
INVALID_REQUEST, NON_EMPTY_GROUP, GROUP_NOT_FOUND, FENCED_INSTANCE = 42, 68, 69, 82
SUBSCRIBED, UNKNOWN_TOPIC_ID = 86, 100
TEXT_BYTES_MAX = 32_767
OFFSETS_TOPIC = "__consumer_offsets"


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    return topics.create(partitions=2)


@pytest.fixture
def group(wire: WireClient) -> str:
    name = unique("group")
    find_coordinator(wire, name)
    return name


@pytest.fixture(scope="module")
def bystander(bootstrap: str, topic: str) -> Iterator[RawGroupMember]:
    """A member of another, stable group."""
    with WireClient(bootstrap) as wire:
        group_id = unique("bystanders")
        find_coordinator(wire, group_id)
    with RawGroupMember(bootstrap, group_id, session_timeout=300_000) as member:
        yield member.join_alone()


@pytest.fixture(autouse=True)
def undisturbed(bystander: RawGroupMember, topic: str) -> Iterator[None]:
    """Checks after every test that the bystander is still a member and can commit."""
    before = committed(bystander.wire, bystander.group_id).get((topic, 0), 0)
    yield
    assert bystander.heartbeat() == 0
    assert bystander.commit(topic, (0, before + 1)) == [0]
    assert committed(bystander.wire, bystander.group_id) == {(topic, 0): before + 1}


@pytest.fixture
def member(bootstrap: str, group: str) -> Iterator[RawGroupMember]:
    """The only member of its group."""
    with RawGroupMember(bootstrap, group) as member:
        yield member.join_alone()


# Who is not a member


@pytest.mark.parametrize("version", range(10))
def test_an_unknown_member_cannot_join(wire: WireClient, member: RawGroupMember, version: int) -> None:
    for group_id in (member.group_id, unique("no-such-group")):
        response = wire.request(JOIN_GROUP, version, join_tree(group_id, "stranger"))
        assert response["error_code"] == UNKNOWN_MEMBER_ID
        assert (response["member_id"], response["generation_id"], response["leader"]) == ("stranger", -1, "")
        assert response["members"] == []
        assert response["protocol_name"] == (None if version >= 7 else "")
        assert response.get("protocol_type") is None


@pytest.mark.parametrize("version", range(6))
def test_an_unknown_member_gets_no_assignment(wire: WireClient, member: RawGroupMember, version: int) -> None:
    for group_id in (member.group_id, unique("no-such-group")):
        response = wire.request(SYNC_GROUP, version, sync_tree(group_id, "stranger", 1))
        assert (response["error_code"], response["assignment"]) == (UNKNOWN_MEMBER_ID, b"")


@pytest.mark.parametrize("version", range(5))
def test_a_heartbeat_of_an_unknown_member_is_rejected(wire: WireClient, member: RawGroupMember, version: int) -> None:
    for group_id in (member.group_id, unique("no-such-group")):
        tree = {"group_id": group_id, "generation_id": 1, "member_id": "stranger"}
        assert wire.request(HEARTBEAT, version, tree)["error_code"] == UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(6))
def test_an_unknown_member_cannot_leave(wire: WireClient, member: RawGroupMember, version: int) -> None:
    leaving = [{"member_id": "stranger"}, {"member_id": "", "group_instance_id": "stranger"}]
    for group_id in (member.group_id, unique("no-such-group")):
        response = wire.request(
            LEAVE_GROUP, version, {"group_id": group_id, "member_id": "stranger", "members": leaving}
        )
        if version < 3:
            assert response["error_code"] == UNKNOWN_MEMBER_ID
        else:
            assert response["error_code"] == 0
            assert [each["error_code"] for each in response["members"]] == [UNKNOWN_MEMBER_ID] * 2


@pytest.mark.parametrize("version", range(2, 10))
def test_a_commit_of_an_unknown_member_is_rejected(
    wire: WireClient, member: RawGroupMember, topic: str, version: int
) -> None:
    stranger = {"member_id": "stranger", "generation_id_or_member_epoch": 1}
    codes = commit(wire, member.group_id, topic, (0, 5), (1, 6), version=version, **stranger)
    assert codes == [UNKNOWN_MEMBER_ID] * 2
    codes = commit(wire, unique("no-such-group"), topic, (0, 5), version=version, **stranger)
    assert codes == [GROUP_NOT_FOUND if version >= 9 else ILLEGAL_GENERATION]
    assert committed(wire, member.group_id) == {}


# Another generation


@pytest.mark.parametrize("generation", [-1, 0, 2, 2**31 - 1])
def test_a_member_of_another_generation_is_rejected(member: RawGroupMember, topic: str, generation: int) -> None:
    assert generation != member.generation
    assert member.heartbeat(generation_id=generation) == ILLEGAL_GENERATION
    tree = sync_tree(member.group_id, member.member_id, generation)
    assert member.wire.request(SYNC_GROUP, 5, tree)["error_code"] == ILLEGAL_GENERATION
    codes = member.commit(topic, (0, 5), generation_id_or_member_epoch=generation)
    assert codes == [ILLEGAL_GENERATION]
    assert member.heartbeat() == 0, "it is still a member"


def test_a_commit_without_membership_in_an_active_group_is_rejected(
    wire: WireClient, member: RawGroupMember, topic: str
) -> None:
    assert commit(wire, member.group_id, topic, (0, 5)) == [UNKNOWN_MEMBER_ID]
    assert committed(wire, member.group_id) == {}


# Group ids


def test_an_empty_group_id_can_have_offsets_but_no_members(wire: WireClient, topic: str, group: str) -> None:
    for version in range(10):
        assert wire.request(JOIN_GROUP, version, join_tree(""))["error_code"] == INVALID_GROUP_ID
    for version in range(6):
        assert wire.request(SYNC_GROUP, version, sync_tree("", "who", 1))["error_code"] == INVALID_GROUP_ID
        leaving = {"group_id": "", "member_id": "who", "members": [{"member_id": "who"}]}
        assert wire.request(LEAVE_GROUP, version, leaving)["error_code"] == INVALID_GROUP_ID
    for version in range(5):
        tree = {"group_id": "", "generation_id": 1, "member_id": "who"}
        assert wire.request(HEARTBEAT, version, tree)["error_code"] == INVALID_GROUP_ID
    deleted = {"group_id": "", "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}
    assert wire.request(OFFSET_DELETE, 0, deleted)["error_code"] == INVALID_GROUP_ID
    assert commit(wire, "", topic, (0, 5)) == [0]
    assert committed(wire, "")[topic, 0] == 5
    (group_answer,) = wire.request(DESCRIBE_GROUPS, 5, {"groups": [""]})["groups"]
    assert (group_answer["error_code"], group_answer["group_state"]) == (0, "Empty")
    assert wire.request(DELETE_GROUPS, 2, {"groups_names": [""]})["results"] == [{"group_id": "", "error_code": 0}]
    assert committed(wire, "") == {}


def test_the_longest_group_id_is_accepted(wire: WireClient, topic: str, group: str) -> None:
    longest = (group + "x" * TEXT_BYTES_MAX)[:TEXT_BYTES_MAX]
    assert commit(wire, longest, topic, (0, 5), version=8) == [0]
    assert committed(wire, longest) == {(topic, 0): 5}
    response = wire.request(JOIN_GROUP, 9, join_tree(longest))
    assert response["error_code"] == MEMBER_ID_REQUIRED


@pytest.mark.parametrize(
    ("api", "version"), [(JOIN_GROUP, 9), (HEARTBEAT, 4), (OFFSET_COMMIT, 8), (OFFSET_FETCH, 7), (FIND_COORDINATOR, 4)]
)
def test_an_oversized_group_id_closes_the_connection(bootstrap: str, topic: str, api: int, version: int) -> None:
    """Kafka closes the connection, as for every string that is longer than a 16-bit length."""
    oversize = "x" * (TEXT_BYTES_MAX + 1)
    trees: dict[int, dict[str, Any]] = {
        JOIN_GROUP: join_tree(oversize),
        HEARTBEAT: {"group_id": oversize, "generation_id": 1, "member_id": "who"},
        OFFSET_COMMIT: commit_tree(oversize, topic, (0, 5)),
        OFFSET_FETCH: {"group_id": oversize, "topics": None},
        FIND_COORDINATOR: {"coordinator_keys": [oversize], "key_type": 0},
    }
    with WireClient(bootstrap) as wire:
        wire.send(api, version, trees[api])
        assert wire.is_closed()


def test_an_undecodable_subscription_is_accepted(bootstrap: str, group: str, topic: str, only_moldau: None) -> None:
    """Apache Kafka 4.3 fails internally, and the member never gets a response."""
    protocols = [{"name": "range", "metadata": b"\xff\xfe nonsense"}]
    with RawGroupMember(bootstrap, group, protocols=protocols) as member:
        member.join_alone()
        assert member.commit(topic, (0, 5)) == [0]
        assert member.heartbeat() == 0


# Joining


@pytest.mark.parametrize("timeout_ms", [-1, 0, 5, 2**31 - 1])
def test_a_session_timeout_out_of_range_is_rejected(wire: WireClient, group: str, timeout_ms: int) -> None:
    for version in range(10):
        response = wire.request(JOIN_GROUP, version, join_tree(group, session_timeout=timeout_ms))
        assert (response["error_code"], response["member_id"]) == (INVALID_SESSION_TIMEOUT, "")


@pytest.mark.parametrize(
    "clash",
    [
        {"protocol_type": "connect"},
        {"protocol_type": ""},
        {"protocols": []},
        {"protocols": [{"name": "another", "metadata": b""}]},
    ],
    ids=str,
)
def test_inconsistent_protocols_are_rejected(wire: WireClient, member: RawGroupMember, clash: dict[str, Any]) -> None:
    response = wire.request(JOIN_GROUP, 3, join_tree(member.group_id, **clash))
    assert response["error_code"] == INCONSISTENT_PROTOCOL
    assert member.heartbeat() == 0, "nobody rebalances for it"


def test_a_sync_with_another_protocol_is_rejected(member: RawGroupMember) -> None:
    for clash in ({"protocol_type": "connect"}, {"protocol_name": "another"}, {"protocol_name": None}):
        tree = sync_tree(member.group_id, member.member_id, member.generation, **clash)
        assert member.wire.request(SYNC_GROUP, 5, tree)["error_code"] == INCONSISTENT_PROTOCOL
    assert member.heartbeat() == 0


def test_a_second_member_with_the_same_instance_id_fences_the_first(bootstrap: str, group: str, topic: str) -> None:
    with RawGroupMember(bootstrap, group, group_instance_id="one") as first:
        first.join_alone()
        with RawGroupMember(bootstrap, group, group_instance_id="one") as second:
            assert second.join()["error_code"] == 0
            assert second.member_id != first.member_id
            named = {"group_instance_id": "one"}
            assert first.heartbeat(**named) == FENCED_INSTANCE
            assert first.commit(topic, (0, 9), **named) == [FENCED_INSTANCE]
            response = first.wire.request(JOIN_GROUP, 5, join_tree(group, first.member_id, **named))
            assert response["error_code"] == FENCED_INSTANCE
            assert committed(first.wire, group) == {}


def test_a_member_that_never_syncs_is_removed(bootstrap: str, group: str) -> None:
    """It was the leader: the others wait for its assignment, then for the rebalance without it."""
    quick = {"rebalance_timeout": 1_500}
    with RawGroupMember(bootstrap, group, **quick) as lazy, RawGroupMember(bootstrap, group, **quick) as keen:
        lazy.join_alone()
        keen.send_join()
        assert keen.receive_join()["error_code"] == MEMBER_ID_REQUIRED
        keen.send_join()
        lazy.heartbeat_until_rebalance()
        assert lazy.join()["leader"] == lazy.member_id
        assert keen.receive_join()["error_code"] == 0
        assert keen.sync()["error_code"] == REBALANCING
        response = keen.join()
        assert (response["error_code"], response["leader"]) == (0, keen.member_id)
        assert [each["member_id"] for each in response["members"]] == [keen.member_id]
        assert keen.sync(keen.member_id)["assignment"] == keen.member_id.encode()
        assert lazy.heartbeat() == UNKNOWN_MEMBER_ID


def test_a_thousand_members_join_and_leave(bootstrap: str, group: str) -> None:
    with WireClient(bootstrap) as wire:
        for number in range(1000):
            response = wire.request(JOIN_GROUP, 3, join_tree(group))
            assert (response["error_code"], response["generation_id"]) == (0, 2 * number + 1)
            leaving = {"group_id": group, "member_id": response["member_id"]}
            assert wire.request(LEAVE_GROUP, 2, leaving)["error_code"] == 0
        (described,) = wire.request(DESCRIBE_GROUPS, 5, {"groups": [group]})["groups"]
        assert (described["group_state"], described["members"]) == ("Empty", [])
        assert wire.request(DELETE_GROUPS, 2, {"groups_names": [group]})["results"][0]["error_code"] == 0


def test_hundreds_of_abandoned_member_ids_create_no_group(wire: WireClient, group: str) -> None:
    ids = set()
    for _ in range(300):
        response = wire.request(JOIN_GROUP, 9, join_tree(group, session_timeout=6_000))
        assert response["error_code"] == MEMBER_ID_REQUIRED
        ids.add(response["member_id"])
    assert len(ids) == 300
    (described,) = wire.request(DESCRIBE_GROUPS, 5, {"groups": [group]})["groups"]
    assert described["members"] == []


def test_members_that_disconnect_during_a_join_affect_no_other(bootstrap: str, member: RawGroupMember) -> None:
    for _ in range(4):
        with WireClient(bootstrap) as wire:
            wire.send(JOIN_GROUP, 3, join_tree(member.group_id, rebalance_timeout=1_000, session_timeout=6_000))
    member.heartbeat_until_rebalance()
    assert member.join()["error_code"] == 0
    assert member.sync(member.member_id)["assignment"] == member.member_id.encode()


def test_the_longest_client_and_instance_ids_are_accepted(bootstrap: str, group: str, only_moldau: None) -> None:
    """Apache Kafka assigns member ids that are too long to be sent, and fails with an internal error."""
    longest = "n" * TEXT_BYTES_MAX
    for version in (3, 5, 9):
        with RawGroupMember(bootstrap, unique(group), client_id=longest) as member:
            assert member.join(version)["error_code"] == 0
            assert member.sync(member.member_id)["error_code"] == 0
            assert len(member.member_id) < 1000
    with RawGroupMember(bootstrap, group, group_instance_id=longest) as static:
        static.join_alone()
        named = {"group_instance_id": longest}
        assert static.heartbeat(**named) == 0
        response = static.wire.request(JOIN_GROUP, 9, join_tree(group, **named))
        assert (response["error_code"], response["member_id"] != static.member_id) == (0, True)


def test_a_member_too_large_for_a_record_is_rejected_at_join(
    wire: WireClient, member: RawGroupMember, only_moldau: None
) -> None:
    """Apache Kafka accepts it, and fails all members when the leader syncs."""
    large = [{"name": "range", "metadata": bytes(600_000)}, {"name": "other", "metadata": bytes(600_000)}]
    response = wire.request(JOIN_GROUP, 3, join_tree(member.group_id, protocols=large))
    assert (response["error_code"], response["member_id"]) == (MESSAGE_TOO_LARGE, "")
    assert member.heartbeat() == 0, "nobody rebalances for it"
    tree = sync_tree(member.group_id, member.member_id, member.generation)
    tree["assignments"] = [{"member_id": each, "assignment": bytes(600_000)} for each in ("one", "another")]
    assert wire.request(SYNC_GROUP, 5, tree)["error_code"] == MESSAGE_TOO_LARGE
    assert member.heartbeat() == 0


# Offsets


@pytest.mark.parametrize("version", range(2, 10))
def test_a_commit_for_an_unknown_topic_fails_only_that_topic(
    wire: WireClient, group: str, topic: str, version: int
) -> None:
    tree = commit_tree(group, topic, (0, 5), (7, 1), (-1, 1))
    tree["topics"] += commit_tree(group, "no-such-topic", (0, 9))["topics"]
    codes = codes_of(wire.request(OFFSET_COMMIT, version, tree))
    assert sorted(codes) == [0, UNKNOWN_TOPIC, UNKNOWN_TOPIC, UNKNOWN_TOPIC]
    assert committed(wire, group) == {(topic, 0): 5}


def test_unknown_topic_ids_have_their_own_error(wire: WireClient, group: str, topic: str) -> None:
    known, unknown = topic_id(wire, topic), UUID(int=77)
    tree = commit_tree(group, topic, (0, 5))
    partitions = tree["topics"][0]["partitions"]
    tree["topics"] = [{"topic_id": each, "partitions": partitions} for each in (known, unknown)]
    response = wire.request(OFFSET_COMMIT, 10, tree)
    found = {each["topic_id"]: each["partitions"][0]["error_code"] for each in response["topics"]}
    assert found == {known: 0, unknown: UNKNOWN_TOPIC_ID}
    requested = [{"topic_id": each, "partition_indexes": [0]} for each in (known, unknown)]
    fetched = wire.request(OFFSET_FETCH, 10, {"groups": [{"group_id": group, "topics": requested}]})["groups"][0]
    assert fetched["error_code"] == 0
    offsets = {
        each["topic_id"]: (each["partitions"][0]["committed_offset"], each["partitions"][0]["error_code"])
        for each in fetched["topics"]
    }
    assert offsets == {known: (5, 0), unknown: (-1, UNKNOWN_TOPIC_ID)}


def test_offset_metadata_over_the_limit_is_rejected(wire: WireClient, group: str, topic: str) -> None:
    assert commit(wire, group, topic, (0, 5), metadata="m" * 4097) == [METADATA_TOO_LARGE]
    assert committed(wire, group) == {}
    assert commit(wire, group, topic, (0, 5), metadata="m" * 4096) == [0]


def test_an_offset_that_was_never_committed_is_minus_one(wire: WireClient, group: str, topic: str) -> None:
    requested = [{"name": topic, "partition_indexes": [0, 99]}, {"name": "no-such-topic", "partition_indexes": [0]}]
    for version in range(1, 8):
        response = wire.request(OFFSET_FETCH, version, {"group_id": group, "topics": requested})
        assert response.get("error_code", 0) == 0
        for found in response["topics"]:
            for each in found["partitions"]:
                assert (each["committed_offset"], each["metadata"], each["error_code"]) == (-1, "", 0)


def test_offsets_of_a_subscribed_topic_are_not_deleted(bootstrap: str, group: str, topic: str) -> None:
    protocols = [{"name": "range", "metadata": subscription(topic)}]
    with RawGroupMember(bootstrap, group, protocols=protocols) as member:
        member.join_alone()
        assert member.commit(topic, (0, 5)) == [0]
        requested = {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}
        response = member.wire.request(OFFSET_DELETE, 0, requested)
        assert (response["error_code"], codes_of(response)) == (0, [SUBSCRIBED])
        assert committed(member.wire, group) == {(topic, 0): 5}


def test_clients_cannot_write_to_the_offsets_topic(wire: WireClient, group: str) -> None:
    assert produce(wire, OFFSETS_TOPIC, batch([b"value"], key=b"key")) == (INVALID_TOPIC, -1)
    deleted = [{"name": OFFSETS_TOPIC, "partitions": [{"partition_index": 0, "offset": -1}]}]
    response = wire.request(DELETE_RECORDS, 2, {"topics": deleted, "timeout": 5_000})
    assert codes_of(response) == [INVALID_TOPIC]


def test_duplicates_in_a_request_have_one_result(wire: WireClient, group: str, topic: str, only_moldau: None) -> None:
    assert commit(wire, group, topic, (0, 5), (1, 6), metadata="m" * 4_000) == [0, 0]
    everything = {"group_id": group, "topics": None}
    response = wire.request(OFFSET_FETCH, 8, {"groups": [everything] * 1_000, "require_stable": True})
    assert [(each["group_id"], len(each["topics"])) for each in response["groups"]] == [(group, 1)]
    some = [{"name": topic, "partition_indexes": [0, 0, 0]}, {"name": topic, "partition_indexes": [1, 0]}]
    for version in range(1, 8):
        response = wire.request(OFFSET_FETCH, version, {"group_id": group, "topics": some * 100})
        (found,) = response["topics"]
        assert [each["committed_offset"] for each in found["partitions"]] == [5, 6]


# Groups


def test_unknown_groups(wire: WireClient, group: str, topic: str) -> None:
    for version in range(7):
        (found,) = wire.request(DESCRIBE_GROUPS, version, {"groups": [group]})["groups"]
        assert found["error_code"] == (GROUP_NOT_FOUND if version >= 6 else 0)
        assert (found["group_state"], found["members"]) == ("Dead", [])
    for version in range(3):
        response = wire.request(DELETE_GROUPS, version, {"groups_names": [group, unique("none")]})
        assert [each["error_code"] for each in response["results"]] == [GROUP_NOT_FOUND] * 2
    requested = {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]}
    assert wire.request(OFFSET_DELETE, 0, requested)["error_code"] == GROUP_NOT_FOUND


def test_a_group_with_members_is_not_deleted(wire: WireClient, member: RawGroupMember) -> None:
    for version in range(3):
        response = wire.request(DELETE_GROUPS, version, {"groups_names": [member.group_id]})
        assert [each["error_code"] for each in response["results"]] == [NON_EMPTY_GROUP]
    assert member.heartbeat() == 0


def test_filters_without_matches_list_no_groups(wire: WireClient, member: RawGroupMember) -> None:
    nonsense = wire.request(LIST_GROUPS, 5, {"states_filter": ["Nonsense"], "types_filter": []})
    assert (nonsense["error_code"], nonsense["groups"]) == (0, [])
    stable = wire.request(LIST_GROUPS, 5, {"states_filter": ["stable"], "types_filter": ["classic"]})
    assert member.group_id in [each["group_id"] for each in stable["groups"]]


@pytest.mark.parametrize("kind", [-1, 3, 127])
def test_other_coordinator_types_are_rejected(wire: WireClient, kind: int) -> None:
    assert wire.request(FIND_COORDINATOR, 2, {"key": "any", "key_type": kind})["error_code"] == INVALID_REQUEST
    (found,) = wire.request(FIND_COORDINATOR, 6, {"coordinator_keys": ["any"], "key_type": kind})["coordinators"]
    assert (found["error_code"], found["node_id"], found["host"], found["port"]) == (INVALID_REQUEST, -1, "", -1)


# Damage


def test_a_corrupt_partition_affects_only_its_own_groups(tmp_path: Path, only_moldau: None) -> None:
    groups = [f"group-{number:02}" for number in range(20)]
    with BrokerProcess(tmp_path / "data", "--offsets-topic-num-partitions", "4") as served:
        topic = Topics(served.bootstrap).create()
        with WireClient(served.bootstrap) as wire:
            find_coordinator(wire, groups[0])
            for number, group_id in enumerate(groups):
                assert commit(wire, group_id, topic, (0, number)) == [0]
        served.stop()
        (segment,) = (served.data_dir / f"{OFFSETS_TOPIC}-1").glob("*.log")
        data = bytearray(segment.read_bytes())
        damaged = [group_id for group_id in groups if group_id.encode() in data]
        assert 0 < len(damaged) < len(groups)
        data[data.index(damaged[0].encode())] ^= 1
        segment.write_bytes(data)
        served.start()
        with WireClient(served.bootstrap) as wire:
            for number, group_id in enumerate(groups):
                if group_id not in damaged:
                    find_coordinator(wire, group_id)
                    assert committed(wire, group_id) == {(topic, 0): number}
                    assert commit(wire, group_id, topic, (0, 100 + number)) == [0]
            for group_id in damaged:
                requested = wire.request(OFFSET_FETCH, 7, {"group_id": group_id, "topics": None})
                assert (requested["error_code"], requested["topics"]) == (NOT_COORDINATOR, [])
                assert commit(wire, group_id, topic, (0, 5)) == [NOT_COORDINATOR]
                response = wire.request(JOIN_GROUP, 5, join_tree(group_id))
                assert (response["error_code"], response["member_id"]) == (NOT_COORDINATOR, "")
            listed = wire.request(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
            assert listed["error_code"] == 0
            assert {each["group_id"] for each in listed["groups"]} == set(groups) - set(damaged)
        assert f"{OFFSETS_TOPIC}-1" in served.output()
        assert "moldau log verify" in served.output()
