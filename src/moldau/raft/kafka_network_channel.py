"""The quorum's calls to other nodes, as Kafka's messages: values into trees, answers back into values.

An answer that says who leads, and since which epoch, is an answer like any other, whatever its error code. A refusal
that says nothing of that (another cluster, another voter, a failed disk) is worth as much as no answer.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from moldau.errors import (
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    MoldauError,
    PeerUnreachableError,
    PositionOutOfRangeError,
    SnapshotNotFoundError,
)
from moldau.observe.logging import get_logger
from moldau.peers.client import PeerClient
from moldau.raft.driver import METADATA_LOG, METADATA_TOPIC_ID
from moldau.raft.messages import (
    NO_EPOCH,
    NO_LEADER,
    BeginQuorumEpochRequest,
    EndQuorumEpochRequest,
    EpochEndOffset,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    QuorumEpochResponse,
    QuorumFetchRequest,
    QuorumFetchResponse,
    ReplicaKey,
    SnapshotId,
    VoterEndpoint,
    VoteRequest,
    VoteResponse,
)
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from moldau.wire.kio import ErrorCode

log = get_logger("quorum.wire")

FETCH_VERSION = 18
"""The first in which a follower says which high watermark it knows, so that it hears of a new one at once."""

LANE = "quorum"
FETCH_LANE = "quorum-fetch"
"""Fetches wait at the leader for news, and answers come in order: votes must not wait behind them."""

_ABOUT_LEADERSHIP = (
    ErrorCode.none,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.not_leader_or_follower,
)


class KafkaNetworkChannel:
    def __init__(
        self,
        peers: PeerClient,
        cluster_id: str | None,
        *,
        listener: str,
        request_timeout_ms: int,
        bootstrap: Mapping[int, tuple[str, int]] | None = None,
        own_addresses: Collection[tuple[str, int]] = (),
        on_refused: Callable[[MoldauError], None] = lambda _: None,
    ) -> None:
        """`listener` is the name of the one on which nodes talk to each other. `bootstrap` has addresses of nodes
        whose ids are not known, under negative ids. `on_refused` hears that this node has no place in the cluster."""
        self._peers = peers
        self._cluster_id = cluster_id
        self._listener = listener
        self._request_timeout_ms = request_timeout_ms
        self._refusals: dict[tuple[int, ApiKey], str] = {}
        """Why each node last refused what it was asked, so that what is repeated is not logged each time."""
        self._own_addresses = own_addresses
        self._on_refused = on_refused
        self._others: dict[int, None] = dict.fromkeys(bootstrap or {})
        """Whom this node asks."""
        self._foreign: dict[int, None] = {}
        """Those of them that say they belong to another cluster."""
        for node_id, (host, port) in (bootstrap or {}).items():
            peers.update_endpoint(node_id, host, port)

    def update_endpoint(self, node_id: int, endpoints: Sequence[VoterEndpoint]) -> None:
        if node_id != self._peers.node_id:
            self._others[node_id] = None
        for endpoint in endpoints:
            if endpoint.listener.upper() == self._listener.upper():
                self._peers.update_endpoint(node_id, endpoint.host, endpoint.port)
                return
        if endpoints:
            self._peers.update_endpoint(node_id, endpoints[0].host, endpoints[0].port)

    async def vote(self, node_id: int, request: VoteRequest) -> VoteResponse:
        tree = self._request(
            {
                "replica_epoch": request.epoch,
                "replica_id": request.candidate.node_id,
                "replica_directory_id": request.candidate.directory_id,
                "voter_directory_id": request.voter.directory_id,
                "last_offset_epoch": request.log_end.epoch,
                "last_offset": request.log_end.offset,
                "pre_vote": request.is_pre_vote,
            }
        )
        tree["voter_id"] = request.voter.node_id
        answer = await self._call(node_id, ApiKey.VOTE, tree, lane=LANE)
        found = self._only_partition(node_id, ApiKey.VOTE, answer)
        self._check(node_id, ApiKey.VOTE, found.error_code)
        self._learn(found.leader_id, answer)
        await self._look_for_double(answer, request.candidate, found)
        return VoteResponse(found.leader_epoch, found.leader_id, found.vote_granted, max(answer.silent_ms, 0))

    async def begin_quorum_epoch(self, node_id: int, request: BeginQuorumEpochRequest) -> QuorumEpochResponse:
        tree = self._request(
            {
                "voter_directory_id": request.voter.directory_id,
                "leader_id": request.leader_id,
                "leader_epoch": request.epoch,
            }
        )
        tree["voter_id"] = request.voter.node_id
        tree["leader_endpoints"] = endpoint_trees(request.endpoints)
        answer = await self._ask(node_id, ApiKey.BEGIN_QUORUM_EPOCH, tree)
        return QuorumEpochResponse(answer.leader_epoch, answer.leader_id)

    async def end_quorum_epoch(self, node_id: int, request: EndQuorumEpochRequest) -> QuorumEpochResponse:
        tree = self._request(
            {
                "leader_id": request.leader_id,
                "leader_epoch": request.epoch,
                "preferred_candidates": [
                    {"candidate_id": each.node_id, "candidate_directory_id": each.directory_id}
                    for each in request.preferred_candidates
                ],
            }
        )
        tree["leader_endpoints"] = []
        answer = await self._ask(node_id, ApiKey.END_QUORUM_EPOCH, tree)
        return QuorumEpochResponse(answer.leader_epoch, answer.leader_id)

    async def fetch(self, node_id: int, request: QuorumFetchRequest) -> QuorumFetchResponse:
        answer = await self._peers.call(
            node_id,
            ApiKey.FETCH,
            self._fetch_tree(request),
            lane=FETCH_LANE,
            timeout_ms=request.max_wait_ms + self._request_timeout_ms,
            version=FETCH_VERSION,
        )
        found = self._only_partition(node_id, ApiKey.FETCH, answer)
        self._check(node_id, ApiKey.FETCH, found.error_code)
        leader = found.current_leader
        self._learn(leader.leader_id, answer)
        await self._look_for_double(answer, request.replica, leader)
        return QuorumFetchResponse(
            epoch=leader.leader_epoch,
            leader_id=leader.leader_id,
            is_leader=found.error_code == ErrorCode.none,
            records=bytes(found.records or b""),
            high_watermark=found.high_watermark,
            log_start_offset=max(found.log_start_offset, 0),
            diverging_epoch=_diverging(found.diverging_epoch),
            snapshot=_snapshot(found.snapshot_id),
            sent_ms=answer.sent_ms,
        )

    async def fetch_snapshot(self, node_id: int, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        partition = {
            "partition": METADATA_LOG.partition,
            "current_leader_epoch": request.epoch,
            "snapshot_id": {"end_offset": request.snapshot.end_offset, "epoch": request.snapshot.epoch},
            "position": request.position,
            "replica_directory_id": request.replica.directory_id,
        }
        tree = {
            "cluster_id": self._cluster_id,
            "replica_id": request.replica.node_id,
            "max_bytes": request.bytes_max,
            "topics": [{"name": METADATA_LOG.topic, "partitions": [partition]}],
            "heard_ms": request.heard_ms,
        }
        answer = await self._call(node_id, ApiKey.FETCH_SNAPSHOT, tree, lane=FETCH_LANE)
        found = self._only_partition(node_id, ApiKey.FETCH_SNAPSHOT, answer)
        if found.error_code == ErrorCode.snapshot_not_found:
            raise SnapshotNotFoundError(f"node {node_id} does not have this snapshot any more")
        if found.error_code == ErrorCode.position_out_of_range:
            raise PositionOutOfRangeError(f"node {node_id}: the snapshot ends before {request.position}")
        self._check(node_id, ApiKey.FETCH_SNAPSHOT, found.error_code)
        leader = found.current_leader
        self._learn(leader.leader_id, answer)
        return FetchSnapshotResponse(
            epoch=leader.leader_epoch,
            leader_id=leader.leader_id,
            is_leader=found.error_code == ErrorCode.none,
            size=found.size,
            position=found.position,
            data=bytes(found.unaligned_records or b""),
            sent_ms=answer.sent_ms,
        )

    # What they have in common

    def _fetch_tree(self, request: QuorumFetchRequest) -> dict[str, Any]:
        partition = {
            "partition": METADATA_LOG.partition,
            "current_leader_epoch": request.epoch,
            "fetch_offset": request.log_end.offset,
            "last_fetched_epoch": request.log_end.epoch,
            "log_start_offset": -1,
            "partition_max_bytes": request.bytes_max,
            "replica_directory_id": request.replica.directory_id,
            "high_watermark": request.high_watermark,
        }
        return {
            "cluster_id": self._cluster_id,
            "replica_state": {"replica_id": request.replica.node_id, "replica_epoch": -1},
            "max_wait": request.max_wait_ms,
            "min_bytes": 0,
            "max_bytes": request.bytes_max,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic_id": METADATA_TOPIC_ID, "partitions": [partition]}],
            "forgotten_topics_data": [],
            "rack_id": "",
            "heard_ms": request.heard_ms,
        }

    def _request(self, partition: Mapping[str, Any]) -> dict[str, Any]:
        """A request about the metadata log, in the form that Vote and its like have."""
        of_log = {"partition_index": METADATA_LOG.partition, **partition}
        topic = {"topic_name": METADATA_LOG.topic, "partitions": [of_log]}
        return {"cluster_id": self._cluster_id, "topics": [topic]}

    async def _ask(self, node_id: int, api: ApiKey, tree: Mapping[str, Any]) -> Message:
        answer = await self._call(node_id, api, tree, lane=LANE)
        found = self._only_partition(node_id, api, answer)
        self._check(node_id, api, found.error_code)
        self._learn(found.leader_id, answer)
        return found

    async def _call(self, node_id: int, api: ApiKey, tree: Mapping[str, Any], *, lane: str) -> Message:
        return await self._peers.call(node_id, api, tree, lane=lane, timeout_ms=self._request_timeout_ms)

    def _only_partition(self, node_id: int, api: ApiKey, answer: Message) -> Message:
        if answer.error_code != ErrorCode.none:
            raise self._refused(node_id, api, answer.error_code)
        topics = answer.get("topics") or answer.get("responses") or ()
        partitions = [each for topic in topics for each in topic.partitions]
        if len(partitions) != 1:
            raise PeerUnreachableError(
                f"node {node_id} answered for {len(partitions)} partitions, not for one"
            )
        found: Message = partitions[0]
        return found

    def _check(self, node_id: int, api: ApiKey, code: int) -> None:
        if code not in _ABOUT_LEADERSHIP:
            raise self._refused(node_id, api, code)
        self._refusals.pop((node_id, api), None)
        self._foreign.pop(node_id, None)

    def _refused(self, node_id: int, api: ApiKey, code: int) -> PeerUnreachableError:
        """Told once: a candidate asks again and again, and gets the same answer until somebody does something."""
        why = _explained(code)
        if why not in [told for (node, _), told in self._refusals.items() if node == node_id]:
            log.error("refused by a voter", node=node_id, why=why)
        self._refusals[node_id, api] = why
        if code == ErrorCode.inconsistent_cluster_id:
            self._told_of_another_cluster(node_id)
        return PeerUnreachableError(f"node {node_id} refuses what the quorum asks: {why}")

    def _told_of_another_cluster(self, by: int) -> None:
        """One of them may be the one in the wrong place: this node gives up when most of them say so."""
        self._foreign[by] = None
        if 2 * len(self._foreign) > len(self._others):
            self._on_refused(
                InconsistentClusterIdError(
                    f"this node belongs to the cluster {self._cluster_id}, and the nodes that it was pointed to belong "
                    "to another; correct controller.quorum.voters, or give it their cluster.id and an empty data.dir "
                    "if it is to join them"
                )
            )

    async def _look_for_double(self, answer: Message, own: ReplicaKey, leader: Message) -> None:
        """A node that asks others leads nothing. Who leads under its id is its own former life, of which they do not
        know yet that it is over, or another node of the same id."""
        if leader.leader_id != own.node_id:
            return
        request = QuorumFetchRequest(
            own,
            leader.leader_epoch,
            EpochEndOffset(NO_EPOCH, 0),
            high_watermark=0,
            max_wait_ms=0,
            bytes_max=1,
        )
        for each in answer.node_endpoints:
            if each.node_id != own.node_id or (each.host, each.port) in self._own_addresses:
                continue
            try:
                told = await self._peers.call_address(
                    each.host, each.port, ApiKey.FETCH, self._fetch_tree(request), version=FETCH_VERSION
                )
                found = self._only_partition(own.node_id, ApiKey.FETCH, told)
            except PeerUnreachableError:
                continue
            if found.error_code == ErrorCode.none and found.current_leader.leader_id == own.node_id:
                self._on_refused(
                    DuplicateBrokerRegistrationError(
                        f"another process runs as node {own.node_id} of this cluster, at {each.host}:{each.port}; "
                        "give this one another node.id, or stop the other one first"
                    )
                )

    def _learn(self, leader_id: int, answer: Message) -> None:
        """Where the leader is: the only way for a node that knows no voters yet, or only those of old."""
        for endpoint in answer.node_endpoints:
            if endpoint.node_id == leader_id and leader_id not in (NO_LEADER, self._peers.node_id):
                self._peers.update_endpoint(leader_id, endpoint.host, endpoint.port)


def endpoint_trees(endpoints: Sequence[VoterEndpoint]) -> list[dict[str, Any]]:
    return [{"name": each.listener, "host": each.host, "port": each.port} for each in endpoints]


def endpoints_of(trees: Sequence[Message]) -> tuple[VoterEndpoint, ...]:
    return tuple(VoterEndpoint(each.name, each.host, each.port) for each in trees)


def _diverging(found: Message | None) -> EpochEndOffset | None:
    if found is None or found.end_offset < 0:
        return None
    return EpochEndOffset(found.epoch, found.end_offset)


def _snapshot(found: Message | None) -> SnapshotId | None:
    if found is None or found.end_offset < 0:
        return None
    return SnapshotId(found.end_offset, found.epoch)


def _explained(code: int) -> str:
    match code:
        case ErrorCode.inconsistent_cluster_id:
            return (
                "it belongs to another cluster (INCONSISTENT_CLUSTER_ID). Look at the addresses in "
                "controller.quorum.voters, and at cluster.id in the meta.properties of both nodes"
            )
        case ErrorCode.invalid_voter_key:
            return (
                "it is another replica than the voter of this id (INVALID_VOTER_KEY): its disk was replaced, or the "
                "address is another node's. Remove that voter and add the new one: `moldau cluster remove-voter`, "
                "then `moldau cluster add-voter`"
            )
        case ErrorCode.kafka_storage_error:
            return "its metadata log has failed, or its disk is full (KAFKA_STORAGE_ERROR)"
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"error {code}"
