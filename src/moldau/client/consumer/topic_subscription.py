"""The topics of a subscription: topics with given names, or all existing topics that match a pattern."""

import asyncio
import re
from collections.abc import Callable

from moldau.client.consumer.subscription_state import SubscriptionState, SubscriptionType
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.observe.logging import get_logger

_MISSING_REFRESH_INTERVAL_S = 1.0

_log = get_logger("client.consumer")


class TopicSubscription:
    """Tracks the subscribed topics in the cluster's metadata."""

    def __init__(
        self,
        cluster: Cluster,
        subscriptions: SubscriptionState,
        on_topics_changed: Callable[[tuple[str, ...]], None],
        *,
        excludes_internal: bool,
    ) -> None:
        """`on_topics_changed` is called whenever the subscribed topics may have changed."""
        self._cluster = cluster
        self._subscriptions = subscriptions
        self._on_topics_changed = on_topics_changed
        self._excludes_internal = excludes_internal
        self._tracked_topics: tuple[str, ...] = ()
        self._pattern_task: asyncio.Task[None] | None = None
        self._missing_refreshed_at = 0.0
        self._remove_update_listener = cluster.on_update(self._on_metadata_update)

    def subscribe(self, names: list[str]) -> None:
        self._subscriptions.subscribe(names)
        self._track(self._subscriptions.topics)
        self._on_topics_changed(self._subscriptions.topics)

    def subscribe_pattern(self, pattern: "re.Pattern[str]") -> None:
        self._subscriptions.subscribe_pattern(pattern)
        if self._pattern_task is None:
            self._cluster.track_all()
            self._pattern_task = asyncio.get_running_loop().create_task(
                self._resolve_pattern(), name="consumer resolves its pattern"
            )
        elif self._pattern_task.done():
            self._on_metadata_update()

    def unsubscribe(self) -> None:
        self._track(())
        if self._pattern_task is not None:
            self._pattern_task.cancel()
            self._pattern_task = None
            self._cluster.untrack_all()

    async def close(self) -> None:
        self._remove_update_listener()
        resolving = self._pattern_task
        self.unsubscribe()
        if resolving is not None:
            await asyncio.gather(resolving, return_exceptions=True)

    def refresh_missing_topics(self, now: float) -> float | None:
        """Refreshes the metadata if subscribed topics are missing. Returns when to call again, if at all."""
        if self._subscriptions.subscription_type is not SubscriptionType.AUTO_TOPICS:
            return None
        missing = [name for name in self._subscriptions.topics if name not in self._cluster.topics]
        if not missing:
            return None
        if now >= self._missing_refreshed_at + _MISSING_REFRESH_INTERVAL_S:
            _log.debug("subscribed topics do not exist", topics=missing)
            self._missing_refreshed_at = now
            self._cluster.refresh_soon()
        return self._missing_refreshed_at + _MISSING_REFRESH_INTERVAL_S

    def _track(self, topics: tuple[str, ...]) -> None:
        self._cluster.track(topics)
        self._cluster.untrack(self._tracked_topics)
        self._tracked_topics = topics

    async def _resolve_pattern(self) -> None:
        """Fetches the metadata of all topics, with retries, and then matches the pattern."""
        backoff = self._cluster.backoff()
        while True:
            try:
                await self._cluster.refresh(all_topics=True)
                break
            except KafkaError as error:
                _log.info("listing topics failed and is retried", error=error)
                await asyncio.sleep(backoff.next_delay_ms() / 1000)
        self._match_pattern()

    def _on_metadata_update(self) -> None:
        if self._pattern_task is not None and self._pattern_task.done():
            self._match_pattern()

    def _match_pattern(self) -> None:
        pattern = self._subscriptions.pattern
        if pattern is None:
            return
        self._subscriptions.topics = tuple(
            sorted(
                name
                for name, topic in self._cluster.topics.items()
                if pattern.fullmatch(name) and not (topic.is_internal and self._excludes_internal)
            )
        )
        self._on_topics_changed(self._subscriptions.topics)
