"""The network channel that sends Raft requests to other nodes as Kafka messages.

A response with an error code in `_LEADERSHIP_CODES` is valid, because it contains the leader and the epoch. Any other
error (wrong cluster, wrong voter, failed disk) is handled like a missing response.
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
from moldau.raft import messages as raft
from moldau.raft.raft_client import METADATA_LOG, METADATA_TOPIC_ID
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from moldau.wire.kio import ErrorCode

log = get_logger("quorum.wire")

FETCH_VERSION = 18
"""The first version with the follower's high watermark. The leader responds once its own high watermark is higher."""

LANE = "quorum"
FETCH_LANE = "quorum-fetch"
"""Fetches use a separate lane (connection). Responses arrive in order, and votes must not wait behind long polls."""

_LEADERSHIP_CODES = (
    ErrorCode.none,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_leader_epoch,
    ErrorCode.not_leader_or_follower,
)


_API_KEYS: dict[type[raft.RaftRequest], ApiKey] = {
    raft.VoteRequest: ApiKey.VOTE,
    raft.BeginQuorumEpochRequest: ApiKey.BEGIN_QUORUM_EPOCH,
    raft.EndQuorumEpochRequest: ApiKey.END_QUORUM_EPOCH,
    raft.QuorumFetchRequest: ApiKey.FETCH,
    raft.FetchSnapshotRequest: ApiKey.FETCH_SNAPSHOT,
}


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
        on_rejected: Callable[[MoldauError], None] = lambda _: None,
    ) -> None:
        """`bootstrap` maps negative ids to the addresses of nodes whose real ids are unknown.

        `listener` is the inter-broker listener. `on_rejected` is called if this node cannot belong to the cluster.
        """
        self._peers = peers
        self._cluster_id = cluster_id
        self._listener = listener
        self._request_timeout_ms = request_timeout_ms
        self._errors: dict[tuple[int, ApiKey], str] = {}
        """The last error of each node and API. A repeated error is not logged again."""
        self._own_addresses = own_addresses
        self._on_rejected = on_rejected
        self._known_nodes: dict[int, None] = dict.fromkeys(bootstrap or {})
        """Nodes that this node sends requests to."""
        self._foreign_nodes: dict[int, None] = {}
        """The nodes in `_known_nodes` that belong to another cluster."""
        for node_id, (host, port) in (bootstrap or {}).items():
            peers.update_endpoint(node_id, host, port)

    def update_endpoint(self, node_id: int, endpoints: Sequence[raft.VoterEndpoint]) -> None:
        if node_id != self._peers.node_id:
            self._known_nodes[node_id] = None
        for endpoint in endpoints:
            if endpoint.listener.upper() == self._listener.upper():
                self._peers.update_endpoint(node_id, endpoint.host, endpoint.port)
                return
        if endpoints:
            self._peers.update_endpoint(node_id, endpoints[0].host, endpoints[0].port)

    async def send(self, node_id: int, request: raft.RaftRequest) -> raft.RaftResponse:
        api, lane, version, timeout_ms = _API_KEYS[type(request)], LANE, None, self._request_timeout_ms
        if isinstance(request, raft.QuorumFetchRequest):
            lane, version, timeout_ms = FETCH_LANE, FETCH_VERSION, timeout_ms + request.max_wait_ms
        elif isinstance(request, raft.FetchSnapshotRequest):
            lane = FETCH_LANE
        body = self._body(request)
        response = await self._peers.call(node_id, api, body, lane=lane, timeout_ms=timeout_ms, version=version)
        result = self._only_partition(node_id, api, response)
        if isinstance(request, raft.FetchSnapshotRequest):
            if result.error_code == ErrorCode.snapshot_not_found:
                raise SnapshotNotFoundError(f"node {node_id} no longer has the snapshot")
            if result.error_code == ErrorCode.position_out_of_range:
                raise PositionOutOfRangeError(f"node {node_id}: the snapshot ends before {request.position}")
        self._check(node_id, api, result.error_code)
        leader = result.current_leader if lane == FETCH_LANE else result
        self._update_leader_endpoint(leader.leader_id, response)
        if isinstance(request, raft.VoteRequest):
            await self._check_duplicate_node(response, request.candidate, leader)
        elif isinstance(request, raft.QuorumFetchRequest):
            await self._check_duplicate_node(response, request.replica, leader)
        return _parse_response(request, response, result, leader)

    def _body(self, request: raft.RaftRequest) -> dict[str, Any]:
        match request:
            case raft.VoteRequest():
                return {
                    "voter_id": request.voter.node_id,
                    **self._election_body(
                        replica_epoch=request.epoch,
                        replica_id=request.candidate.node_id,
                        replica_directory_id=request.candidate.directory_id,
                        voter_directory_id=request.voter.directory_id,
                        last_offset_epoch=request.log_end.epoch,
                        last_offset=request.log_end.offset,
                        pre_vote=request.is_pre_vote,
                    ),
                }
            case raft.BeginQuorumEpochRequest():
                return {
                    "voter_id": request.voter.node_id,
                    "leader_endpoints": [
                        {"name": each.listener, "host": each.host, "port": each.port} for each in request.endpoints
                    ],
                    **self._election_body(
                        voter_directory_id=request.voter.directory_id,
                        leader_id=request.leader_id,
                        leader_epoch=request.epoch,
                    ),
                }
            case raft.EndQuorumEpochRequest():
                candidates = [
                    {"candidate_id": each.node_id, "candidate_directory_id": each.directory_id}
                    for each in request.preferred_candidates
                ]
                return {
                    "leader_endpoints": [],
                    **self._election_body(
                        leader_id=request.leader_id, leader_epoch=request.epoch, preferred_candidates=candidates
                    ),
                }
            case raft.QuorumFetchRequest():
                return self._fetch_body(request)
            case raft.FetchSnapshotRequest():
                partition = {
                    "partition": METADATA_LOG.partition,
                    "current_leader_epoch": request.epoch,
                    "snapshot_id": {"end_offset": request.snapshot.end_offset, "epoch": request.snapshot.epoch},
                    "position": request.position,
                    "replica_directory_id": request.replica.directory_id,
                }
                return {
                    "cluster_id": self._cluster_id,
                    "replica_id": request.replica.node_id,
                    "max_bytes": request.bytes_max,
                    "topics": [{"name": METADATA_LOG.topic, "partitions": [partition]}],
                    "heard_ms": request.leader_sent_ms,
                }

    def _election_body(self, **partition: Any) -> dict[str, Any]:
        """Returns the fields that Vote, BeginQuorumEpoch and EndQuorumEpoch requests share."""
        partitions = [{"partition_index": METADATA_LOG.partition, **partition}]
        topic = {"topic_name": METADATA_LOG.topic, "partitions": partitions}
        return {"cluster_id": self._cluster_id, "topics": [topic]}

    def _fetch_body(self, request: raft.QuorumFetchRequest) -> dict[str, Any]:
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
            "heard_ms": request.leader_sent_ms,
        }

    def _only_partition(self, node_id: int, api: ApiKey, response: Message) -> Message:
        if response.error_code != ErrorCode.none:
            raise self._rejection(node_id, api, response.error_code)
        topics = response.get("topics") or response.get("responses") or ()
        partitions = [each for topic in topics for each in topic.partitions]
        if len(partitions) != 1:
            raise PeerUnreachableError(
                f"the response of node {node_id} has {len(partitions)} partitions instead of one"
            )
        result: Message = partitions[0]
        return result

    def _check(self, node_id: int, api: ApiKey, code: int) -> None:
        if code not in _LEADERSHIP_CODES:
            raise self._rejection(node_id, api, code)
        self._errors.pop((node_id, api), None)
        self._foreign_nodes.pop(node_id, None)

    def _rejection(self, node_id: int, api: ApiKey, code: int) -> PeerUnreachableError:
        """Returns the exception for an error code. A repeated error is not logged, because candidates keep asking."""
        reason = _describe_error(code)
        if reason not in [logged for (node, _), logged in self._errors.items() if node == node_id]:
            log.error("request rejected by a voter", node=node_id, reason=reason)
        self._errors[node_id, api] = reason
        if code == ErrorCode.inconsistent_cluster_id:
            self._foreign_nodes[node_id] = None
            # Stop this node only if most nodes reject its cluster id, because a single other node may be misconfigured.
            if 2 * len(self._foreign_nodes) > len(self._known_nodes):
                self._on_rejected(
                    InconsistentClusterIdError(
                        f"this node belongs to cluster {self._cluster_id}, but the configured voters belong to another "
                        "one; correct controller.quorum.voters, or, to join their cluster, set its cluster.id and an "
                        "empty data.dir"
                    )
                )
        return PeerUnreachableError(f"node {node_id} rejects quorum requests: {reason}")

    async def _check_duplicate_node(self, response: Message, own: raft.ReplicaKey, leader: Message) -> None:
        """Detects another process with this node's id.

        The leader sends no Vote or Fetch requests. So if the response to such a request names this node's id as the
        leader, that leader is either this node before its restart, or another process with the same id.
        """
        if leader.leader_id != own.node_id:
            return
        log_end = raft.EpochEndOffset(raft.NO_EPOCH, 0)
        request = raft.QuorumFetchRequest(own, leader.leader_epoch, log_end, high_watermark=0, bytes_max=1)
        for each in response.node_endpoints:
            if each.node_id != own.node_id or (each.host, each.port) in self._own_addresses:
                continue
            try:
                fetched = await self._peers.call_address(
                    each.host, each.port, ApiKey.FETCH, self._fetch_body(request), version=FETCH_VERSION
                )
                result = self._only_partition(own.node_id, ApiKey.FETCH, fetched)
            except PeerUnreachableError:
                continue
            if result.error_code == ErrorCode.none and result.current_leader.leader_id == own.node_id:
                self._on_rejected(
                    DuplicateBrokerRegistrationError.with_advice(own.node_id, f"at {each.host}:{each.port}")
                )

    def _update_leader_endpoint(self, leader_id: int, response: Message) -> None:
        """Updates the leader's address. A node that knows no current voters finds the leader only in this way."""
        for endpoint in response.node_endpoints:
            if endpoint.node_id == leader_id and leader_id not in (raft.NO_LEADER, self._peers.node_id):
                self._peers.update_endpoint(leader_id, endpoint.host, endpoint.port)


def _parse_response(
    request: raft.RaftRequest, response: Message, result: Message, leader: Message
) -> raft.RaftResponse:
    """Returns the response. `result` is its only partition, and `leader` has the leader's id and epoch."""
    epoch, leader_id, is_leader = leader.leader_epoch, leader.leader_id, result.error_code == ErrorCode.none
    match request:
        case raft.VoteRequest():
            return raft.VoteResponse(epoch, leader_id, result.vote_granted, max(response.silent_ms, 0))
        case raft.BeginQuorumEpochRequest() | raft.EndQuorumEpochRequest():
            return raft.QuorumEpochResponse(epoch, leader_id)
        case raft.QuorumFetchRequest():
            diverging, snapshot = result.diverging_epoch, result.snapshot_id
            has_diverged = diverging is not None and diverging.end_offset >= 0
            has_snapshot = snapshot is not None and snapshot.end_offset >= 0
            return raft.QuorumFetchResponse(
                epoch,
                leader_id,
                is_leader,
                records=bytes(result.records or b""),
                high_watermark=result.high_watermark,
                log_start_offset=max(result.log_start_offset, 0),
                diverging_epoch=raft.EpochEndOffset(diverging.epoch, diverging.end_offset) if has_diverged else None,
                snapshot=raft.SnapshotId(snapshot.end_offset, snapshot.epoch) if has_snapshot else None,
                sent_ms=response.sent_ms,
            )
        case raft.FetchSnapshotRequest():
            data = bytes(result.unaligned_records or b"")
            return raft.FetchSnapshotResponse(
                epoch, leader_id, is_leader, result.size, result.position, data, response.sent_ms
            )


def _describe_error(code: int) -> str:
    match code:
        case ErrorCode.inconsistent_cluster_id:
            return (
                "it belongs to another cluster (INCONSISTENT_CLUSTER_ID). Check the addresses in "
                "controller.quorum.voters, and cluster.id in the meta.properties of both nodes"
            )
        case ErrorCode.invalid_voter_key:
            return (
                "it is not the voter with this id (INVALID_VOTER_KEY): its disk was replaced, or the address belongs "
                "to another node. Replace the voter: `moldau cluster remove-voter`, then `moldau cluster add-voter`"
            )
        case ErrorCode.kafka_storage_error:
            return "its metadata log has failed, or its disk is full (KAFKA_STORAGE_ERROR)"
    try:
        return ErrorCode(code).name.upper()
    except ValueError:
        return f"error {code}"
