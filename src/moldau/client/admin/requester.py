"""Requests of the admin client, with retries: to any broker, to each of several brokers, or to coordinators."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from moldau.client.errors import COORDINATOR_ERRORS, ErrorCode, KafkaError, raise_for_code
from moldau.client.net.cluster import GROUP, Cluster, Retry
from moldau.client.net.metadata import NO_LEADER
from moldau.client.record import TopicPartition
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Results = dict[K, V | KafkaError]
"""The value or error of each key."""

NodeRequest = Callable[[int | None, list[K], Retry], Awaitable[Results[K, V]]]
"""Sends one request for these keys to a node (None: any node)."""

_FINAL_ERRORS = (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id, ErrorCode.election_not_needed)
"""Errors that the protocol marks as retriable, but that `for_each` returns at once."""


class AdminRequester:
    """The retry loops that all admin requests share."""

    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    def attempt_timeout_ms(self, retry: Retry) -> int:
        return min(retry.remaining_ms, self._cluster.request_timeout_ms)

    async def call(self, api: ApiKey, tree: Mapping[str, Any]) -> Message:
        """Sends one request to any broker. Raises KafkaError if the response has an error code."""
        response = await self._cluster.call(None, api, tree)
        raise_for_code(response.error_code, response.error_message)
        return response

    async def with_retries(self, attempt: Callable[[Retry], Awaitable[V]]) -> V:
        """Repeats one operation until it succeeds. Raises KafkaError after a final error or the timeout."""
        retry = self._cluster.retry(self._timeout_ms)
        while True:
            try:
                return await attempt(retry)
            except KafkaError as error:
                await retry.wait_or_raise(error)

    async def call_idempotent(
        self, api: ApiKey, make_tree: Callable[[Retry], Mapping[str, Any]], already_done_code: ErrorCode
    ) -> None:
        """Retries a change. `already_done_code` in a later attempt means that an earlier attempt succeeded."""
        is_first = True

        async def attempt(retry: Retry) -> None:
            nonlocal is_first
            was_first, is_first = is_first, False
            try:
                await self.call(api, make_tree(retry))
            except KafkaError as error:
                if was_first or error.code != already_done_code:
                    raise

        await self.with_retries(attempt)

    async def for_each(
        self,
        keys: Iterable[K],
        request: Callable[[list[K], Retry], Awaitable[Results[K, V]]],
        *,
        final_errors: Sequence[ErrorCode] = _FINAL_ERRORS,
    ) -> Results[K, V]:
        """Sends a request for all keys, and again for keys with a retriable error, until the timeout."""
        results: Results[K, V] = {}
        order = remaining = list(dict.fromkeys(keys))
        retry = self._cluster.retry(self._timeout_ms)
        while remaining:
            try:
                responses = await request(remaining, retry)
            except KafkaError as error:
                responses = dict.fromkeys(remaining, error)
            for key in remaining:
                missing = KafkaError(ErrorCode.unknown_server_error, f"the response lacks {key}")
                results[key] = responses.get(key, missing)
            failures = {
                key: result
                for key in remaining
                if isinstance(result := results[key], KafkaError) and result.code not in final_errors
            }
            remaining = [key for key, failure in failures.items() if failure.is_retriable]
            if remaining:
                try:
                    await retry.wait_or_raise(failures[remaining[0]])
                except KafkaError:
                    break
        return {key: results[key] for key in order}

    async def for_each_on_node(
        self, keys: Iterable[K], node_of: Callable[[K], int | None], request: NodeRequest[K, V]
    ) -> Results[K, V]:
        """Groups the keys by `node_of` (None: any node) and sends each node a request for its keys, with retries."""
        return await self.for_each(
            keys, lambda remaining, retry: self.by_node({key: node_of(key) for key in remaining}, request, retry)
        )

    async def for_each_on_leader(
        self, partitions: Iterable[TopicPartition], request: NodeRequest[TopicPartition, V]
    ) -> Results[TopicPartition, V]:
        """Sends the leader of each partition a request for its partitions, with retries."""

        async def attempt(remaining: list[TopicPartition], retry: Retry) -> Results[TopicPartition, V]:
            leaders, failures = await find_leaders(self._cluster, remaining)
            return {**failures, **await self.by_node(leaders, request, retry)}

        return await self.for_each(partitions, attempt)

    async def on_all_brokers(self, request: Callable[[int], Awaitable[Sequence[V]]]) -> list[V]:
        """Sends a request to each broker and returns all results. Raises KafkaError if a broker cannot be queried.

        After an error all brokers are queried again: if one of them has died, the others have taken over its groups and
        transactions.
        """

        async def attempt(retry: Retry) -> list[V]:
            try:
                await self._cluster.refresh(timeout_ms=retry.remaining_ms)
            except KafkaError as error:
                raise retry.cause(error) from None
            found: list[V] = []
            requests = [request(broker_id) for broker_id in self._cluster.brokers]
            for result in await asyncio.gather(*requests, return_exceptions=True):
                if isinstance(result, KafkaError):
                    raise retry.cause(result)
                if isinstance(result, BaseException):
                    raise result
                found += result
            return found

        return await self.with_retries(attempt)

    async def for_each_on_coordinator(
        self, keys: Iterable[str], request: NodeRequest[str, V], *, kind: int = GROUP
    ) -> Results[str, V]:
        """Sends each coordinator a request for its groups (or transactional ids), with retries."""

        async def attempt(remaining: list[str], retry: Retry) -> Results[str, V]:
            coordinators: dict[str, int | None] = {}
            results: Results[str, V] = {}
            for key in remaining:
                try:
                    coordinators[key] = await self._cluster.coordinator_of(key, kind, timeout_ms=retry.remaining_ms)
                except KafkaError as error:
                    results[key] = error
            results |= await self.by_node(coordinators, request, retry)
            for key, result in results.items():
                if isinstance(result, KafkaError) and result.code in COORDINATOR_ERRORS:
                    self._cluster.forget_coordinator(key, kind)
            return results

        return await self.for_each(keys, attempt)

    async def by_node(self, nodes: Mapping[K, int | None], request: NodeRequest[K, V], retry: Retry) -> Results[K, V]:
        """Sends each node a request for its keys. The requests to all nodes are concurrent."""
        by_node: dict[int | None, list[K]] = {}
        for key, node in nodes.items():
            by_node.setdefault(node, []).append(key)

        async def request_one(node: int | None, keys: list[K]) -> Results[K, V]:
            try:
                return await request(node, keys, retry)
            except KafkaError as error:
                return dict.fromkeys(keys, error)

        responses = await asyncio.gather(*(request_one(node, keys) for node, keys in by_node.items()))
        return {key: result for each in responses for key, result in each.items()}


def single_result(results: Results[K, V]) -> V:
    """Returns the only result, or raises it if it is an error."""
    (result,) = results.values()
    if isinstance(result, KafkaError):
        raise result
    return result


def to_error(code: int, message: str | None = None) -> KafkaError | None:
    """Returns the error for a code, None for success."""
    return None if code == ErrorCode.none else KafkaError(code, message)


async def find_leaders(
    cluster: Cluster, partitions: list[TopicPartition]
) -> tuple[dict[TopicPartition, int | None], dict[TopicPartition, KafkaError]]:
    """Returns the current leaders, and the errors of partitions without a leader."""
    await cluster.refresh(dict.fromkeys(partition.topic for partition in partitions))
    leaders: dict[TopicPartition, int | None] = {}
    failures: dict[TopicPartition, KafkaError] = {}
    for partition in partitions:
        known = cluster.partition_info(partition)
        if partition.topic not in cluster.topics:
            failures[partition] = missing_topic_error(cluster, partition.topic)
        elif known is None:
            failures[partition] = KafkaError(
                ErrorCode.unknown_topic_or_partition, f"partition {partition} does not exist"
            )
        elif known.leader == NO_LEADER:
            failures[partition] = KafkaError(ErrorCode.leader_not_available, f"{partition} has no leader now")
        else:
            leaders[partition] = known.leader
    return leaders, failures


def missing_topic_error(cluster: Cluster, name: str) -> KafkaError:
    code = cluster.topic_errors.get(name, ErrorCode.unknown_topic_or_partition)
    return KafkaError(code, f"the topic {name!r}")
