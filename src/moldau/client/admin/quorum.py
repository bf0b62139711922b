"""Admin requests for the metadata quorum and broker registrations; `Admin` documents them."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from moldau.client.admin.requester import AdminRequester
from moldau.client.errors import ErrorCode, KafkaError, raise_for_code
from moldau.client.net.cluster import Retry
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

METADATA_TOPIC = "__cluster_metadata"


class NodeEndpoint(NamedTuple):
    listener: str
    host: str
    port: int


class QuorumReplica(NamedTuple):
    node_id: int
    directory_id: UUID | None
    end_offset: int
    last_fetch_ms: int
    """The wall clock time of the last fetch, as measured by the leader; -1 if the replica never fetched."""
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    leader_id: int
    epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: dict[int, tuple[NodeEndpoint, ...]]
    """The addresses that voters use among themselves."""

    def replica(self, node_id: int) -> QuorumReplica | None:
        """Returns the voter with this id, or else the observer, or None.

        If a node has several directories, returns the replica that fetched last.
        """
        for replicas in (self.voters, self.observers):
            found = [each for each in replicas if each.node_id == node_id]
            if found:
                return max(found, key=lambda each: each.last_fetch_ms)
        return None


async def describe_quorum(admin: AdminRequester) -> QuorumInfo:
    async def attempt(retry: Retry) -> QuorumInfo:
        topics = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
        response = await admin.cluster.call(None, ApiKey.DESCRIBE_QUORUM, {"topics": topics})
        raise_for_code(response.error_code, response.error_message)
        partition = response.topics[0].partitions[0]
        raise_for_code(partition.error_code, partition.error_message)
        return QuorumInfo(
            partition.leader_id,
            partition.leader_epoch,
            partition.high_watermark,
            tuple(_parse_replica(each) for each in partition.current_voters),
            tuple(_parse_replica(each) for each in partition.observers),
            {
                node.node_id: tuple(NodeEndpoint(at.name, at.host, at.port) for at in node.listeners)
                for node in response.nodes
            },
        )

    return await admin.with_retries(attempt)


async def add_voter(admin: AdminRequester, node_id: int, directory_id: UUID | None, endpoint: NodeEndpoint) -> None:
    async def attempt(retry: Retry) -> None:
        tree = {
            "cluster_id": admin.cluster.cluster_id,
            # The broker's timeout is shorter than the client's, so that the broker's response with the reason can
            # arrive.
            "timeout": admin.attempt_timeout_ms(retry) * 9 // 10,
            "voter_id": node_id,
            "voter_directory_id": directory_id,
            "listeners": [{"name": endpoint.listener, "host": endpoint.host, "port": endpoint.port}],
            "ack_when_committed": True,
        }
        response = await admin.cluster.call(None, ApiKey.ADD_RAFT_VOTER, tree)
        raise_for_code(response.error_code, response.error_message)

    await _call_idempotent(admin, attempt, ErrorCode.duplicate_voter)


async def remove_voter(admin: AdminRequester, node_id: int, directory_id: UUID | None) -> None:
    async def attempt(retry: Retry) -> None:
        tree = {"cluster_id": admin.cluster.cluster_id, "voter_id": node_id, "voter_directory_id": directory_id}
        response = await admin.cluster.call(None, ApiKey.REMOVE_RAFT_VOTER, tree)
        raise_for_code(response.error_code, response.error_message)

    await _call_idempotent(admin, attempt, ErrorCode.voter_not_found)


async def unregister_broker(admin: AdminRequester, broker_id: int) -> None:
    async def attempt(retry: Retry) -> None:
        response = await admin.cluster.call(None, ApiKey.UNREGISTER_BROKER, {"broker_id": broker_id})
        raise_for_code(response.error_code, response.error_message)

    await _call_idempotent(admin, attempt, ErrorCode.broker_id_not_registered)


async def _call_idempotent(
    admin: AdminRequester, attempt: Callable[[Retry], Awaitable[None]], already_done_code: ErrorCode
) -> None:
    """Retries a change. `already_done_code` in a later attempt means that an earlier attempt succeeded."""
    is_first = True

    async def once(retry: Retry) -> None:
        nonlocal is_first
        was_first, is_first = is_first, False
        try:
            await attempt(retry)
        except KafkaError as error:
            if was_first or error.code != already_done_code:
                raise

    await admin.with_retries(once)


def _parse_replica(response: Message) -> QuorumReplica:
    return QuorumReplica(
        response.replica_id,
        response.replica_directory_id,
        response.log_end_offset,
        response.last_fetch_timestamp,
        response.last_caught_up_timestamp,
    )
