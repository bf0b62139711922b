"""Raft requests as Kafka messages, through the codecs and the handlers of another node."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from moldau.client.net.api_versions import SUPPORTED_VERSIONS
from moldau.error_codes import ErrorCode
from moldau.errors import (
    DuplicateBrokerRegistrationError,
    DuplicateVoterError,
    InconsistentClusterIdError,
    InvalidVoterKeyError,
    MoldauError,
    NotControllerError,
    PeerUnreachableError,
    PositionOutOfRangeError,
    RequestTimedOutError,
    SnapshotNotFoundError,
    StorageError,
    VoterNotFoundError,
)
from moldau.handlers import REGISTRY
from moldau.metadata.image import MetadataImage
from moldau.raft.kafka_network_channel import FETCH_LANE, FETCH_VERSION, LANE, KafkaNetworkChannel
from moldau.raft.messages import (
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEndOffset,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumDescription,
    QuorumEpochResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    ReplicaProgress,
    SnapshotId,
    VoterEndpoint,
    VoteRequest,
    VoteResponse,
    VoterNode,
)
from moldau.server.api import ClientConnection, RequestContext
from moldau.server.metadata_fetch import fetch_metadata, is_metadata_fetch
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder
from support.admin_broker import handle

DISK_1, DISK_2 = UUID(int=11), UUID(int=22)
ENDPOINTS = (VoterEndpoint("CLIENTS", "c", 1), VoterEndpoint("NODES", "n2", 9094))
TOPIC = "__cluster_metadata"


class RecordingQuorum:
    """A Raft client with a scripted response that records its calls."""

    def __init__(self, response: Any = None) -> None:
        self.response = response
        self.asked: list[Any] = []
        self.leader_id, self.epoch, self.is_leader, self.has_live_leader = 2, 7, True, True
        self.voters = [VoterNode(1, DISK_1), VoterNode(2, DISK_2)]

    def leader_endpoint(self) -> tuple[str, int] | None:
        return ("leader.example", 9094) if self.leader_id >= 0 else None

    def describe(self) -> Any:
        return self.response

    def __getattr__(self, name: str) -> Any:
        async def asked(request: Any, timeout_ms: int = 0) -> Any:
            self.asked.append(request)
            if isinstance(self.response, Exception):
                raise self.response
            return self.response

        return asked


class OtherNode:
    """A peer client that passes calls through the codecs to the handlers of another node."""

    node_id = 1

    def __init__(self, quorum: RecordingQuorum, cluster_id: str = "cluster", listener: str = "NODES") -> None:
        self.broker: Any = SimpleNamespace(
            quorum=quorum,
            metadata=SimpleNamespace(image=MetadataImage(cluster_id=cluster_id)),
            settings=SimpleNamespace(broker=SimpleNamespace(inter_broker_listener="NODES")),
        )
        self.listener = listener
        self.known: dict[int, tuple[str, int]] = {}
        self.lanes: list[str] = []
        self.listening: dict[tuple[str, int], OtherNode] = {}
        """Nodes that can be called by address."""

    def update_endpoint(self, node_id: int, host: str, port: int) -> None:
        self.known[node_id] = (host, port)

    async def call(
        self,
        node_id: int,
        api: ApiKey,
        tree: Mapping[str, Any],
        *,
        lane: str,
        timeout_ms: int | None = None,
        version_max: int | None = None,
        version: int | None = None,
    ) -> Message:
        self.lanes.append(lane)
        return await self.serve(api, SUPPORTED_VERSIONS[api].maximum if version is None else version, tree)

    async def call_address(
        self, host: str, port: int, api: ApiKey, tree: Mapping[str, Any], *, version: int
    ) -> Message:
        if (host, port) not in self.listening:
            raise PeerUnreachableError("connection refused", is_connection_refused=True)
        return await self.listening[host, port].serve(api, version, tree)

    async def serve(self, api: ApiKey, version: int, tree: Mapping[str, Any]) -> Message:
        frame = bytearray()
        encoder(api, version, "request")(frame, tree)
        request = decoder(api, version, "request")(memoryview(bytes(frame)))
        session = RequestContext(ClientConnection("127.0.0.1:1", self.listener), version, None)
        handler = fetch_metadata if api is ApiKey.FETCH else partial(handle, api)
        response = bytearray()
        encoder(api, version, "response")(response, await handler(request, session, self.broker))
        return decoder(api, version, "response")(memoryview(bytes(response)))


def peers_of(other: OtherNode, cluster_id: str = "cluster") -> KafkaNetworkChannel:
    return KafkaNetworkChannel(other, cluster_id, listener="NODES", request_timeout_ms=1000)  # type: ignore[arg-type]


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


VOTE = VoteRequest(ReplicaKey(1, DISK_1), 8, EpochEndOffset(7, 42), False, ReplicaKey(2, DISK_2))
PRE_VOTE = VoteRequest(ReplicaKey(1, None), 7, EpochEndOffset(-1, 0), True, ReplicaKey(2, None))
BEGIN = BeginQuorumEpochRequest(1, 8, ReplicaKey(2, DISK_2), ENDPOINTS)
END = EndQuorumEpochRequest(1, 8, (ReplicaKey(2, DISK_2), ReplicaKey(3, None)))
FETCH = QuorumFetchRequest(ReplicaKey(1, DISK_1), 7, EpochEndOffset(6, 40), 39, 250, 1_000_000)
SNAPSHOT = FetchSnapshotRequest(ReplicaKey(1, DISK_1), 7, SnapshotId(100, 6), 4096, 1000)

EXCHANGES = [
    (VOTE, VoteResponse(8, -1, True)),
    (VOTE, VoteResponse(8, -1, False)),
    (PRE_VOTE, VoteResponse(7, 2, False)),
    (BEGIN, QuorumEpochResponse(8, 1)),
    (END, QuorumEpochResponse(8, -1)),
    (FETCH, QuorumFetchResponse(7, 2, True, b"some batches", 41, 3)),
    (FETCH, QuorumFetchResponse(7, 2, True, b"", 41, 0, diverging_epoch=EpochEndOffset(5, 38))),
    (FETCH, QuorumFetchResponse(7, 2, True, b"", 41, 50, snapshot=SnapshotId(60, 6))),
    (FETCH, QuorumFetchResponse(7, 3, False)),
    (FETCH, QuorumFetchResponse(9, 3, False)),
    (FETCH, QuorumFetchResponse(5, -1, False)),
    (SNAPSHOT, FetchSnapshotResponse(7, 2, True, 9000, 4096, b"a piece of it")),
    (SNAPSHOT, FetchSnapshotResponse(9, 3, False)),
]


@pytest.mark.parametrize(("request_", "response"), EXCHANGES)
def test_requests_and_responses_round_trip(request_: Any, response: Any) -> None:
    quorum = RecordingQuorum(response)
    other = OtherNode(quorum)
    assert run(peers_of(other).send(2, request_)) == response
    assert quorum.asked == [request_]


def test_a_vote_does_not_wait_behind_a_fetch() -> None:
    other = OtherNode(RecordingQuorum(QuorumFetchResponse(7, 2, True)))
    run(peers_of(other).send(2, FETCH))
    other.broker.quorum.response = VoteResponse(8, -1, True)
    run(peers_of(other).send(2, VOTE))
    assert other.lanes == [FETCH_LANE, LANE]
    assert FETCH_LANE != LANE


@pytest.mark.parametrize(
    ("request_", "response", "code"),
    [
        (VOTE, VoteResponse(9, 3, False), ErrorCode.fenced_leader_epoch),
        (VOTE, VoteResponse(8, 3, False), ErrorCode.none),
        (BEGIN, QuorumEpochResponse(9, 3), ErrorCode.fenced_leader_epoch),
        (END, QuorumEpochResponse(9, 3), ErrorCode.fenced_leader_epoch),
        (FETCH, QuorumFetchResponse(8, 3, False), ErrorCode.fenced_leader_epoch),
        (FETCH, QuorumFetchResponse(8, 2, True), ErrorCode.fenced_leader_epoch),
        (FETCH, QuorumFetchResponse(6, 3, False), ErrorCode.unknown_leader_epoch),
        (FETCH, QuorumFetchResponse(7, 3, False), ErrorCode.not_leader_or_follower),
        (SNAPSHOT, FetchSnapshotResponse(8, 3, False), ErrorCode.fenced_leader_epoch),
        (SNAPSHOT, FetchSnapshotResponse(7, 3, False), ErrorCode.not_leader_or_follower),
    ],
)
def test_epochs_map_to_kafkas_error_codes(request_: Any, response: Any, code: ErrorCode) -> None:
    messages: list[Message] = []

    class TracingNode(OtherNode):
        async def serve(self, api: ApiKey, version: int, tree: Mapping[str, Any]) -> Message:
            messages.append(await super().serve(api, version, tree))
            return messages[-1]

    found = run(peers_of(TracingNode(RecordingQuorum(response))).send(2, request_))
    (message,) = messages
    assert message.error_code == ErrorCode.none
    topics = message.get("topics") or message.get("responses")
    (partition,) = topics[0].partitions
    assert partition.error_code == code
    assert (found.epoch, found.leader_id) == (response.epoch, response.leader_id)


@pytest.mark.parametrize("request_", [request for request, _ in EXCHANGES])
def test_a_request_of_another_cluster_is_rejected_at_the_top_level(request_: Any) -> None:
    quorum = RecordingQuorum()
    with pytest.raises(PeerUnreachableError, match="another cluster"):
        run(peers_of(OtherNode(quorum), "stranger").send(2, request_))
    assert quorum.asked == []


@pytest.mark.parametrize("request_", [request for request, _ in EXCHANGES])
@pytest.mark.parametrize("error", [StorageError("the disk is gone"), InvalidVoterKeyError("another disk")])
def test_an_error_without_a_leader_counts_as_no_response(request_: Any, error: MoldauError) -> None:
    with pytest.raises(PeerUnreachableError):
        run(peers_of(OtherNode(RecordingQuorum(error))).send(2, request_))


def test_a_missing_snapshot_and_a_position_out_of_range_have_different_errors() -> None:
    with pytest.raises(SnapshotNotFoundError):
        run(peers_of(OtherNode(RecordingQuorum(SnapshotNotFoundError("gone")))).send(2, SNAPSHOT))
    with pytest.raises(PositionOutOfRangeError):
        run(peers_of(OtherNode(RecordingQuorum(PositionOutOfRangeError("short")))).send(2, SNAPSHOT))


@pytest.mark.parametrize(
    ("request_", "response"),
    [
        (FETCH, QuorumFetchResponse(7, 3, False)),
        (VOTE, VoteResponse(7, 3, False)),
        (BEGIN, QuorumEpochResponse(7, 3)),
        (END, QuorumEpochResponse(7, 3)),
    ],
)
def test_the_leaders_endpoint_is_learned_from_any_response(request_: Any, response: Any) -> None:
    quorum = RecordingQuorum(response)
    quorum.leader_id = 3
    other = OtherNode(quorum)
    run(peers_of(other).send(-2, request_))
    assert other.known == {3: ("leader.example", 9094)}


def test_a_node_ignores_its_own_address_in_responses() -> None:
    quorum = RecordingQuorum(QuorumFetchResponse(7, 1, False))
    quorum.leader_id = 1
    other = OtherNode(quorum)
    run(peers_of(other).send(2, FETCH))
    assert other.known == {}


@pytest.mark.parametrize(
    ("at_that_address", "is_double"),
    [(None, False), (QuorumFetchResponse(8, 3, False), False), (QuorumFetchResponse(8, 1, True), True)],
)
@pytest.mark.parametrize("is_vote", [True, False])
def test_a_node_stops_if_another_process_is_leader_with_its_id(
    at_that_address: QuorumFetchResponse | None, is_double: bool, is_vote: bool
) -> None:
    quorum = RecordingQuorum(VoteResponse(8, 1, False) if is_vote else QuorumFetchResponse(8, 1, False))
    quorum.leader_id = 1
    other = OtherNode(quorum)
    if at_that_address is not None:
        other.listening["leader.example", 9094] = OtherNode(RecordingQuorum(at_that_address))
    rejections: list[Exception] = []
    peers = KafkaNetworkChannel(
        other,  # type: ignore[arg-type]
        "cluster",
        listener="NODES",
        request_timeout_ms=1000,
        on_rejected=rejections.append,
    )
    run(peers.send(2, VOTE) if is_vote else peers.send(2, FETCH))
    assert [type(each) for each in rejections] == [DuplicateBrokerRegistrationError] * is_double
    assert all("node.id" in str(each) for each in rejections)


def test_a_node_stops_if_most_voters_belong_to_another_cluster() -> None:
    rejections: list[Exception] = []
    peers = KafkaNetworkChannel(
        OtherNode(RecordingQuorum(), cluster_id="theirs"),  # type: ignore[arg-type]
        "ours",
        listener="NODES",
        request_timeout_ms=1000,
        on_rejected=rejections.append,
    )
    for node_id in (1, 2, 3):
        peers.update_endpoint(node_id, ENDPOINTS)
    for node_id in (2, 2, 3):
        assert not rejections
        with pytest.raises(PeerUnreachableError):
            run(peers.send(node_id, FETCH))
    assert [type(each) for each in rejections] == [InconsistentClusterIdError]
    assert "cluster.id" in str(rejections[0])


def test_requests_use_the_inter_broker_listener() -> None:
    other = OtherNode(RecordingQuorum())
    peers = KafkaNetworkChannel(
        other,  # type: ignore[arg-type]
        "cluster",
        listener="nodes",
        request_timeout_ms=1,
        bootstrap={-2: ("b", 9)},
    )
    peers.update_endpoint(2, ENDPOINTS)
    peers.update_endpoint(3, ENDPOINTS[:1])
    peers.update_endpoint(4, ())
    assert other.known == {-2: ("b", 9), 2: ("n2", 9094), 3: ("c", 1)}


# Invalid requests


@pytest.mark.parametrize(
    ("api", "version", "tree"),
    [
        (ApiKey.VOTE, 2, {"replica_id": 99, "replica_epoch": 50, "last_offset_epoch": 49, "last_offset": 1}),
        (ApiKey.BEGIN_QUORUM_EPOCH, 1, {"leader_id": 99, "leader_epoch": 50}),
        (ApiKey.END_QUORUM_EPOCH, 1, {"leader_id": 99, "leader_epoch": 50, "preferred_candidates": []}),
    ],
)
def test_a_node_that_is_neither_voter_nor_broker_deposes_no_leader(
    api: ApiKey, version: int, tree: dict[str, Any]
) -> None:
    quorum = RecordingQuorum(VoteResponse(50, -1, True))
    full = {"replica_directory_id": DISK_1, "voter_directory_id": DISK_2, "pre_vote": False, **tree}
    other = OtherNode(quorum)
    response = run(other.serve(api, version, about(full, voter_id=2)))
    assert response.topics[0].partitions[0].error_code == ErrorCode.inconsistent_voter_set
    assert quorum.asked == []


def about(partition: Mapping[str, Any], topic: str = TOPIC, index: int = 0, **more: Any) -> dict[str, Any]:
    topics = [{"topic_name": topic, "partitions": [{"partition_index": index, **partition}]}]
    return {"cluster_id": "cluster", "topics": topics, "leader_endpoints": [], **more}


VOTE_TREE = {
    "replica_epoch": 8,
    "replica_id": 1,
    "replica_directory_id": DISK_1,
    "voter_directory_id": DISK_2,
    "last_offset_epoch": 7,
    "last_offset": 42,
    "pre_vote": False,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"replica_id": -1},
        {"replica_epoch": -1},
        {"last_offset": -1},
        {"last_offset_epoch": -2},
        {"last_offset_epoch": 8},
        {"last_offset_epoch": 9, "pre_vote": True},
    ],
)
def test_a_contradictory_vote_request_is_invalid(wrong: Mapping[str, Any]) -> None:
    quorum = RecordingQuorum(VoteResponse(8, -1, True))
    response = run(OtherNode(quorum).serve(ApiKey.VOTE, 2, about({**VOTE_TREE, **wrong}, voter_id=2)))
    (partition,) = response.topics[0].partitions
    assert (response.error_code, partition.error_code) == (0, ErrorCode.invalid_request)
    assert not partition.vote_granted
    assert (partition.leader_id, partition.leader_epoch) == (2, 7)
    assert quorum.asked == []


@pytest.mark.parametrize("where", [{"topic": "orders"}, {"index": 1}])
def test_requests_for_other_partitions_are_rejected(where: Mapping[str, Any]) -> None:
    other = OtherNode(RecordingQuorum())
    leads = {"leader_id": 1, "leader_epoch": 8, "preferred_candidates": [], "voter_directory_id": None}
    for api, version, partition in (
        (ApiKey.VOTE, 2, VOTE_TREE),
        (ApiKey.BEGIN_QUORUM_EPOCH, 1, leads),
        (ApiKey.END_QUORUM_EPOCH, 1, leads),
    ):
        response = run(other.serve(api, version, about(partition, voter_id=2, **where)))
        assert (response.error_code, response.topics) == (ErrorCode.invalid_request, [])


def test_a_missing_cluster_id_is_accepted() -> None:
    quorum = RecordingQuorum(VoteResponse(8, -1, True))
    response = run(OtherNode(quorum).serve(ApiKey.VOTE, 2, about(VOTE_TREE, voter_id=2, cluster_id=None)))
    assert response.topics[0].partitions[0].vote_granted


def fetch_tree(version: int, replica_id: int = 1, offset: int = 0, **more: Any) -> dict[str, Any]:
    partition = {
        "partition": 0,
        "fetch_offset": offset,
        "partition_max_bytes": 1000,
        "current_leader_epoch": 7,
        "log_start_offset": 0,
        "last_fetched_epoch": -1,
    } | more
    topic = {"topic": TOPIC, "topic_id": UUID(int=1), "partitions": [partition]}
    return {
        "replica_id": replica_id,
        "replica_state": {"replica_id": replica_id, "replica_epoch": -1},
        "max_wait": 10,
        "min_bytes": 1,
        "max_bytes": 5000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [topic],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


@pytest.mark.parametrize("version", range(4, 19))
def test_a_replica_without_a_directory_is_rejected(version: int) -> None:
    quorum = RecordingQuorum(QuorumFetchResponse(7, 2, True, b"secret", 5))
    response = run(OtherNode(quorum).serve(ApiKey.FETCH, version, fetch_tree(version)))
    (partition,) = response.responses[0].partitions
    assert (partition.error_code, bytes(partition.records)) == (ErrorCode.invalid_request, b"")
    assert quorum.asked == []


@pytest.mark.parametrize("version", [17, 18])
def test_every_fetch_version_with_a_directory_reads_the_metadata_log(version: int) -> None:
    quorum = RecordingQuorum(QuorumFetchResponse(7, 2, True, b"batches", 5))
    tree = fetch_tree(version, replica_directory_id=DISK_1)
    response = run(OtherNode(quorum).serve(ApiKey.FETCH, version, tree))
    (partition,) = response.responses[0].partitions
    assert (partition.error_code, bytes(partition.records)) == (0, b"batches")
    assert quorum.asked[0].replica == ReplicaKey(1, DISK_1)
    assert quorum.asked[0].bytes_max == 1000
    assert quorum.asked[0].high_watermark == 2**63 - 1


@pytest.mark.parametrize(("version", "code"), [(12, 3), (13, 100), (FETCH_VERSION, 100)])
def test_clients_cannot_fetch_the_metadata_log(version: int, code: int) -> None:
    quorum = RecordingQuorum(QuorumFetchResponse(7, 2, True, b"secret", 5))
    for other, replica_id in ((OtherNode(quorum), -1), (OtherNode(quorum, listener="CLIENTS"), 1)):
        response = run(other.serve(ApiKey.FETCH, version, fetch_tree(version, replica_id)))
        (partition,) = response.responses[0].partitions
        assert (partition.error_code, bytes(partition.records)) == (code, b"")
    assert quorum.asked == []


def test_a_fetch_with_invalid_offsets_is_rejected() -> None:
    quorum = RecordingQuorum()
    for wrong in ({"offset": -1}, {"last_fetched_epoch": -2}):
        response = run(OtherNode(quorum).serve(ApiKey.FETCH, 17, fetch_tree(17, **wrong)))
        assert response.responses[0].partitions[0].error_code == ErrorCode.invalid_request


def test_the_metadata_log_must_be_the_only_partition_of_a_fetch() -> None:
    tree = fetch_tree(17)
    other_topic = dict(tree["topics"][0], topic_id=UUID(int=77))
    quorum = RecordingQuorum()
    for topics in ([other_topic, tree["topics"][0]], [dict(tree["topics"][0], partitions=[])]):
        response = run(OtherNode(quorum).serve(ApiKey.FETCH, 17, tree | {"topics": topics}))
        assert (response.error_code, response.responses) == (ErrorCode.invalid_request, [])


@pytest.mark.parametrize("version", [4, 5, 6])
def test_versions_without_a_top_level_error_have_it_in_each_partition(version: int) -> None:
    tree = fetch_tree(version, replica_id=-1)
    orders = dict(tree["topics"][0], topic="orders", partitions=[tree["topics"][0]["partitions"][0] | {"partition": 3}])
    tree["topics"].append(orders)
    response = run(OtherNode(RecordingQuorum()).serve(ApiKey.FETCH, version, tree))
    told = [
        (topic.topic, each.partition_index, each.error_code)
        for topic in response.responses
        for each in topic.partitions
    ]
    assert told == [(TOPIC, 0, ErrorCode.invalid_request), ("orders", 3, ErrorCode.invalid_request)]


def test_a_metadata_fetch_is_recognised_by_name_and_by_id() -> None:
    def decoded(version: int, **change: Any) -> Message:
        tree = fetch_tree(version)
        tree["topics"][0] |= change
        frame = bytearray()
        encoder(ApiKey.FETCH, version, "request")(frame, tree)
        return decoder(ApiKey.FETCH, version, "request")(memoryview(bytes(frame)))

    assert is_metadata_fetch(decoded(12))
    assert is_metadata_fetch(decoded(13))
    assert not is_metadata_fetch(decoded(12, topic="orders"))
    assert not is_metadata_fetch(decoded(13, topic_id=UUID(int=9)))


def snapshot_tree(name: str = TOPIC, partition: int = 0, max_bytes: int = 10) -> dict[str, Any]:
    asked = {
        "partition": partition,
        "current_leader_epoch": 7,
        "snapshot_id": {"end_offset": 1, "epoch": 1},
        "position": 0,
    }
    return {"replica_id": 1, "max_bytes": max_bytes, "topics": [{"name": name, "partitions": [asked]}]}


def test_only_the_metadata_log_has_snapshots() -> None:
    other = OtherNode(RecordingQuorum())
    for tree in (snapshot_tree("orders"), snapshot_tree(partition=3), snapshot_tree() | {"topics": []}):
        response = run(other.serve(ApiKey.FETCH_SNAPSHOT, 1, tree))
        assert (response.error_code, response.topics) == (ErrorCode.invalid_request, [])
    response = run(other.serve(ApiKey.FETCH_SNAPSHOT, 1, snapshot_tree(max_bytes=0)))
    assert response.topics[0].partitions[0].error_code == ErrorCode.invalid_request


# Changes of the voters, and DescribeQuorum


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_leader_describes_the_quorum(version: int) -> None:
    progress = ReplicaProgress(ReplicaKey(2, DISK_2), 50, 1_700_000_000_000, 1_700_000_000_001)
    observer = ReplicaProgress(ReplicaKey(4, None), 40, -1, -1)
    found = QuorumDescription(2, 7, 48, [progress], [observer], [VoterNode(2, DISK_2, ENDPOINTS)])
    topics = [
        {"topic_name": TOPIC, "partitions": [{"partition_index": 0}]},
        {"topic_name": "orders", "partitions": [{"partition_index": 0}]},
    ]
    response = run(OtherNode(RecordingQuorum(found)).serve(ApiKey.DESCRIBE_QUORUM, version, {"topics": topics}))
    (described,), (unknown,) = (topic.partitions for topic in response.topics)
    assert (response.error_code, described.error_code) == (0, 0)
    assert unknown.error_code == ErrorCode.unknown_topic_or_partition
    assert (described.leader_id, described.leader_epoch, described.high_watermark) == (2, 7, 48)
    assert [(each.replica_id, each.log_end_offset) for each in described.current_voters] == [(2, 50)]
    assert [(each.replica_id, each.log_end_offset) for each in described.observers] == [(4, 40)]
    if version >= 1:
        assert described.current_voters[0].last_caught_up_timestamp == 1_700_000_000_001
    if version >= 2:
        assert described.current_voters[0].replica_directory_id == DISK_2
        assert [(node.node_id, node.listeners[1].host) for node in response.nodes] == [(2, "n2")]


def test_a_repeated_partition_is_described_once() -> None:
    found = QuorumDescription(2, 7, 48, [ReplicaProgress(ReplicaKey(2, DISK_2), 50, 1, 1)], [], [])
    topics = [{"topic_name": TOPIC, "partitions": [{"partition_index": 0}] * 3}] * 2
    response = run(OtherNode(RecordingQuorum(found)).serve(ApiKey.DESCRIBE_QUORUM, 2, {"topics": topics}))
    assert [[each.partition_index for each in topic.partitions] for topic in response.topics] == [[0]]


def test_a_follower_does_not_describe_the_quorum() -> None:
    quorum = RecordingQuorum()
    quorum.is_leader = False
    response = run(OtherNode(quorum).serve(ApiKey.DESCRIBE_QUORUM, 2, {"topics": []}))
    assert response.error_code == ErrorCode.not_controller


def add_tree(**more: Any) -> dict[str, Any]:
    return {
        "cluster_id": "cluster",
        "timeout": 1000,
        "voter_id": 4,
        "voter_directory_id": DISK_1,
        "listeners": [{"name": each.listener, "host": each.host, "port": each.port} for each in ENDPOINTS],
        "ack_when_committed": True,
        **more,
    }


@pytest.mark.parametrize("version", [0, 1])
def test_a_voter_is_added_with_its_directory_and_endpoints(version: int) -> None:
    quorum = RecordingQuorum()
    response = run(OtherNode(quorum).serve(ApiKey.ADD_RAFT_VOTER, version, add_tree()))
    assert (response.error_code, response.error_message) == (0, None)
    assert quorum.asked == [VoterNode(4, DISK_1, ENDPOINTS[::-1])]


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"cluster_id": "stranger"}, ErrorCode.inconsistent_cluster_id),
        ({"voter_id": -1}, ErrorCode.invalid_request),
        ({"voter_directory_id": None}, ErrorCode.invalid_request),
        ({"listeners": [{"name": "CLIENTS", "host": "h", "port": 1}]}, ErrorCode.invalid_request),
    ],
)
def test_a_voter_without_an_endpoint_or_directory_is_rejected(wrong: Mapping[str, Any], code: ErrorCode) -> None:
    quorum = RecordingQuorum()
    response = run(OtherNode(quorum).serve(ApiKey.ADD_RAFT_VOTER, 1, add_tree(**wrong)))
    assert response.error_code == code
    assert response.error_message
    assert quorum.asked == []


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DuplicateVoterError("it votes already"), ErrorCode.duplicate_voter),
        (NotControllerError("moved"), ErrorCode.not_controller),
    ],
)
def test_errors_of_voter_changes_are_returned(error: MoldauError, code: ErrorCode) -> None:
    response = run(OtherNode(RecordingQuorum(error)).serve(ApiKey.ADD_RAFT_VOTER, 1, add_tree()))
    assert (response.error_code, response.error_message) == (code, str(error))


def test_the_timeout_of_the_request_is_passed_to_the_raft_client() -> None:
    waits: list[int] = []

    class Stuck(RecordingQuorum):
        async def add_voter(self, voter: VoterNode, timeout_ms: int) -> None:
            waits.append(timeout_ms)
            raise RequestTimedOutError("not in time")

    response = run(OtherNode(Stuck()).serve(ApiKey.ADD_RAFT_VOTER, 1, add_tree(timeout=1234)))
    assert (response.error_code, waits) == (ErrorCode.request_timed_out, [1234])


def test_a_voter_is_removed_by_its_key() -> None:
    quorum = RecordingQuorum()
    tree = {"cluster_id": "cluster", "voter_id": 3, "voter_directory_id": DISK_2}
    assert run(OtherNode(quorum).serve(ApiKey.REMOVE_RAFT_VOTER, 0, tree)).error_code == 0
    assert quorum.asked == [ReplicaKey(3, DISK_2)]
    quorum.response = VoterNotFoundError("no such voter")
    response = run(OtherNode(quorum).serve(ApiKey.REMOVE_RAFT_VOTER, 0, tree))
    assert (response.error_code, response.error_message) == (ErrorCode.voter_not_found, "no such voter")


def update_tree(epoch: int) -> dict[str, Any]:
    feature = {"min_supported_version": 0, "max_supported_version": 1}
    return add_tree(current_leader_epoch=epoch, k_raft_version_feature=feature)


def test_the_endpoints_of_a_voter_can_be_updated() -> None:
    quorum = RecordingQuorum()
    response = run(OtherNode(quorum).serve(ApiKey.UPDATE_RAFT_VOTER, 0, update_tree(7)))
    assert response.error_code == 0
    assert quorum.asked == [VoterNode(4, DISK_1, ENDPOINTS[::-1])]


@pytest.mark.parametrize(
    ("epoch", "is_leader", "code"),
    [
        (6, True, ErrorCode.fenced_leader_epoch),
        (8, True, ErrorCode.unknown_leader_epoch),
        (7, False, ErrorCode.not_leader_or_follower),
    ],
)
def test_an_end_quorum_epoch_to_the_wrong_node_returns_the_leader(epoch: int, is_leader: bool, code: ErrorCode) -> None:
    quorum = RecordingQuorum()
    quorum.is_leader = is_leader
    response = run(OtherNode(quorum).serve(ApiKey.UPDATE_RAFT_VOTER, 0, update_tree(epoch)))
    assert response.error_code == code
    leader = response.current_leader
    assert (leader.leader_id, leader.leader_epoch, leader.host, leader.port) == (2, 7, "leader.example", 9094)
    assert quorum.asked == []


def names(apis: Sequence[ApiKey]) -> list[str]:
    return [api.name for api in apis]


def test_inter_broker_apis_are_closed_to_clients() -> None:
    between = [api for api, served in REGISTRY.items() if served.inter_broker]
    forwarded = [api for api, served in REGISTRY.items() if served.forwarded]
    assert {"VOTE", "BEGIN_QUORUM_EPOCH", "END_QUORUM_EPOCH", "FETCH_SNAPSHOT", "UPDATE_RAFT_VOTER"} <= set(
        names(between)
    )
    assert {"DESCRIBE_QUORUM", "ADD_RAFT_VOTER", "REMOVE_RAFT_VOTER"} <= set(names(forwarded))
