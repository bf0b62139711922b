"""What all parts of the admin client share: its life, and asking about many things until each has its answer."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from moldau.client.errors import COORDINATOR_ERRORS, ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster, Retry, resolve_cluster

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Results = dict[K, V | KafkaError]
"""What became of each thing that was asked about: a value, or why there is none."""

_FINAL_ERRORS = (
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.unknown_topic_id,
    ErrorCode.election_not_needed,
)
"""Retriable for those who wait for a thing to appear; for an administrator they are the answer."""


class AdminRequester:
    def __init__(
        self, cluster: str | Sequence[str] | Cluster, *, timeout_ms: int = 30_000, **cluster_settings: Any
    ) -> None:
        """`cluster` is bootstrap servers (with `cluster_settings` as `Cluster` has them), or one that is shared
        and started. Whatever is retriable is tried again for `timeout_ms`."""
        self._cluster, self._owns_cluster = resolve_cluster(cluster, cluster_settings)
        self._timeout_ms = timeout_ms

    async def start(self) -> None:
        if self._owns_cluster:
            await self._cluster.start()

    async def close(self) -> None:
        if self._owns_cluster:
            await self._cluster.close()

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def cluster(self) -> Cluster:
        return self._cluster

    def _new_retry(self) -> Retry:
        return self._cluster.retry(self._timeout_ms)

    def request_timeout_ms(self, retry: Retry) -> int:
        return min(retry.remaining_ms, self._cluster.request_timeout_ms)

    async def call_once(self, attempt: Callable[[Retry], Awaitable[V]]) -> V:
        """Attempts one thing until it succeeds, cannot, or the time is over; then raises KafkaError."""
        retry = self._new_retry()
        while True:
            try:
                return await attempt(retry)
            except KafkaError as error:
                await retry.wait_or_raise(error)

    async def call_for_each(
        self, keys: Iterable[K], ask: Callable[[list[K], Retry], Awaitable[Results[K, V]]]
    ) -> Results[K, V]:
        """Asks about all keys, and again about those whose error is retriable, until the time is over."""
        results: Results[K, V] = {}
        order = left = list(dict.fromkeys(keys))
        retry = self._new_retry()
        while left:
            try:
                answers = await ask(left, retry)
            except KafkaError as error:
                answers = dict.fromkeys(left, error)
            results |= {key: answers[key] if key in answers else _missing_result(key) for key in left}
            failures = {
                key: failure for key in left if (failure := _retriable_error(results[key])) is not None
            }
            left = list(failures)
            if left:
                try:
                    await retry.wait_or_raise(failures[left[0]])
                except KafkaError:
                    break
        return {key: results[key] for key in order}

    async def call_by_node(
        self,
        nodes: Mapping[K, int | None],
        ask: Callable[[int | None, list[K], Retry], Awaitable[Results[K, V]]],
        retry: Retry,
    ) -> Results[K, V]:
        """Asks each node about its keys, all nodes at the same time."""
        by_node: dict[int | None, list[K]] = {}
        for key, node in nodes.items():
            by_node.setdefault(node, []).append(key)

        async def ask_one(node: int | None, keys: list[K]) -> Results[K, V]:
            try:
                return await ask(node, keys, retry)
            except KafkaError as error:
                return dict.fromkeys(keys, error)

        answers = await asyncio.gather(*(ask_one(node, keys) for node, keys in by_node.items()))
        return {key: result for each in answers for key, result in each.items()}

    async def call_for_each_group(
        self, groups: Iterable[str], ask: Callable[[int | None, list[str], Retry], Awaitable[Results[str, V]]]
    ) -> Results[str, V]:
        """Asks the groups' coordinators about them."""

        async def attempt(left: list[str], retry: Retry) -> Results[str, V]:
            coordinators: dict[str, int | None] = {}
            results: Results[str, V] = {}
            for group in left:
                try:
                    coordinators[group] = await self._cluster.coordinator_of(
                        group, timeout_ms=retry.remaining_ms
                    )
                except KafkaError as error:
                    results[group] = error
            results |= await self.call_by_node(coordinators, ask, retry)
            for group, result in results.items():
                if isinstance(result, KafkaError) and result.code in COORDINATOR_ERRORS:
                    self._cluster.forget_coordinator(group)
            return results

        return await self.call_for_each(groups, attempt)

    async def call_coordinator(self, group: str, ask: Callable[[int, int], Awaitable[V]]) -> V:
        """Asks a group's coordinator (a node, with a timeout in ms) one thing; raises KafkaError."""

        async def attempt(retry: Retry) -> V:
            try:
                node = await self._cluster.coordinator_of(group, timeout_ms=retry.remaining_ms)
                return await ask(node, self.request_timeout_ms(retry))
            except KafkaError as error:
                if error.code in COORDINATOR_ERRORS:
                    self._cluster.forget_coordinator(group)
                raise

        return await self.call_once(attempt)


def single_result(results: Results[K, V]) -> V:
    """The result of asking about one thing; raises what became of it."""
    (result,) = results.values()
    if isinstance(result, KafkaError):
        raise result
    return result


def to_error(code: int, message: str | None = None) -> KafkaError | None:
    return None if code == ErrorCode.none else KafkaError(code, message)


def _retriable_error(result: object) -> KafkaError | None:
    if isinstance(result, KafkaError) and result.is_retriable and result.code not in _FINAL_ERRORS:
        return result
    return None


def _missing_result(key: object) -> KafkaError:
    return KafkaError(ErrorCode.unknown_server_error, f"the answer says nothing of {key}")
