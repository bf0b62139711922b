"""The admin client's part for nodes: the metadata quorum, its voters, and brokers that are gone for good."""

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
    """Wall time at the leader; -1 where it never fetched."""
    last_caught_up_ms: int


@dataclass(frozen=True, slots=True)
class QuorumInfo:
    leader_id: int
    epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: dict[int, tuple[NodeEndpoint, ...]]
    """Where the voters are reached by each other."""

    def replica(self, node_id: int) -> QuorumReplica | None:
        """The voter of this id; else the observer, of several directories the one that fetched last."""
        for replicas in (self.voters, self.observers):
            found = [each for each in replicas if each.node_id == node_id]
            if found:
                return max(found, key=lambda each: each.last_fetch_ms)
        return None


class QuorumAdmin(AdminRequester):
    async def describe_quorum(self) -> QuorumInfo:
        """Who keeps the cluster's metadata, and how far each of them is, as the leader sees it."""

        async def attempt(retry: Retry) -> QuorumInfo:
            asked = [{"topic_name": METADATA_TOPIC, "partitions": [{"partition_index": 0}]}]
            answer = await self._cluster.call(None, ApiKey.DESCRIBE_QUORUM, {"topics": asked})
            raise_for_code(answer.error_code, answer.error_message)
            partition = answer.topics[0].partitions[0]
            raise_for_code(partition.error_code, partition.error_message)
            return QuorumInfo(
                partition.leader_id,
                partition.leader_epoch,
                partition.high_watermark,
                tuple(_parse_replica(each) for each in partition.current_voters),
                tuple(_parse_replica(each) for each in partition.observers),
                {
                    node.node_id: tuple(NodeEndpoint(at.name, at.host, at.port) for at in node.listeners)
                    for node in answer.nodes
                },
            )

        return await self.call_once(attempt)

    async def add_voter(self, node_id: int, directory_id: UUID | None, endpoint: NodeEndpoint) -> None:
        """Gives a node a vote, once it has the metadata; returns when a majority has taken it in."""

        async def attempt(retry: Retry) -> None:
            tree = {
                "cluster_id": self._cluster.cluster_id,
                # Less than the answer is waited for, so that it comes and says what is missing.
                "timeout": self.request_timeout_ms(retry) * 9 // 10,
                "voter_id": node_id,
                "voter_directory_id": directory_id,
                "listeners": [{"name": endpoint.listener, "host": endpoint.host, "port": endpoint.port}],
                "ack_when_committed": True,
            }
            answer = await self._cluster.call(None, ApiKey.ADD_RAFT_VOTER, tree)
            raise_for_code(answer.error_code, answer.error_message)

        await self._call_idempotent(attempt, ErrorCode.duplicate_voter)

    async def remove_voter(self, node_id: int, directory_id: UUID | None) -> None:
        async def attempt(retry: Retry) -> None:
            tree = {
                "cluster_id": self._cluster.cluster_id,
                "voter_id": node_id,
                "voter_directory_id": directory_id,
            }
            answer = await self._cluster.call(None, ApiKey.REMOVE_RAFT_VOTER, tree)
            raise_for_code(answer.error_code, answer.error_message)

        await self._call_idempotent(attempt, ErrorCode.voter_not_found)

    async def unregister_broker(self, broker_id: int) -> None:
        """Forgets a broker that will not come back."""

        async def attempt(retry: Retry) -> None:
            answer = await self._cluster.call(None, ApiKey.UNREGISTER_BROKER, {"broker_id": broker_id})
            raise_for_code(answer.error_code, answer.error_message)

        await self._call_idempotent(attempt, ErrorCode.broker_id_not_registered)

    async def _call_idempotent(
        self, attempt: Callable[[Retry], Awaitable[None]], already_done_code: ErrorCode
    ) -> None:
        """Attempts a change. Where the first attempt may have made it, hearing later that it
        `already_done_code` is success."""
        is_first = True

        async def once(retry: Retry) -> None:
            nonlocal is_first
            was_first, is_first = is_first, False
            try:
                await attempt(retry)
            except KafkaError as error:
                if was_first or error.code != already_done_code:
                    raise

        await self.call_once(once)


def _parse_replica(answer: Message) -> QuorumReplica:
    return QuorumReplica(
        answer.replica_id,
        answer.replica_directory_id,
        answer.log_end_offset,
        answer.last_fetch_timestamp,
        answer.last_caught_up_timestamp,
    )
