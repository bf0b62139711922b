"""Keeps the topics of a subscription in the metadata: those named, or those that fit a pattern as they come and go."""

import asyncio
import re
from collections.abc import Callable

from moldau.client.consumer.positions import Mode, Positions
from moldau.client.errors import KafkaError
from moldau.client.net.cluster import Cluster
from moldau.observe.logging import get_logger

_MISSING_ASKED_EVERY_S = 1.0

_log = get_logger("client.consumer")


class WantedTopics:
    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        changed: Callable[[tuple[str, ...]], None],
        *,
        excludes_internal: bool,
    ) -> None:
        """`changed` hears of the topics whenever they may be others than before."""
        self._cluster = cluster
        self._positions = positions
        self._changed = changed
        self._excludes_internal = excludes_internal
        self._tracked: tuple[str, ...] = ()
        self._resolving: asyncio.Task[None] | None = None
        self._missing_asked_at = 0.0
        self._forget_updates = cluster.on_update(self._fit_pattern)

    def subscribe(self, names: list[str]) -> None:
        self._positions.subscribe(names)
        self._track(self._positions.topics)
        self._changed(self._positions.topics)

    def subscribe_pattern(self, pattern: "re.Pattern[str]") -> None:
        self._positions.subscribe_pattern(pattern)
        if self._resolving is None:
            self._cluster.track_all()
            self._resolving = asyncio.get_running_loop().create_task(
                self._resolve_pattern(), name="consumer looks which topics fit its pattern"
            )
        elif self._resolving.done():
            self._fit_pattern()

    def unsubscribe(self) -> None:
        self._track(())
        if self._resolving is not None:
            self._resolving.cancel()
            self._resolving = None
            self._cluster.untrack_all()

    async def close(self) -> None:
        self._forget_updates()
        resolving = self._resolving
        self.unsubscribe()
        if resolving is not None:
            await asyncio.gather(resolving, return_exceptions=True)

    def ask_for_missing(self, now: float) -> float | None:
        """Topics that do not exist yet are asked for again and again: when they come, the leader shares them out.
        Returns the loop time to call again."""
        if self._positions.mode is not Mode.TOPICS:
            return None
        missing = [name for name in self._positions.topics if name not in self._cluster.topics]
        if not missing:
            return None
        if now >= self._missing_asked_at + _MISSING_ASKED_EVERY_S:
            _log.debug("subscribed topics do not exist", topics=missing)
            self._missing_asked_at = now
            self._cluster.refresh_soon()
        return self._missing_asked_at + _MISSING_ASKED_EVERY_S

    def _track(self, topics: tuple[str, ...]) -> None:
        self._cluster.track(topics)
        self._cluster.untrack(self._tracked)
        self._tracked = topics

    async def _resolve_pattern(self) -> None:
        """All topics have to be known once before it is said which of them fit."""
        backoff = self._cluster.backoff()
        while True:
            try:
                await self._cluster.refresh(all_topics=True)
                break
            except KafkaError as error:
                _log.info("topics could not be listed and will be again", error=error)
                await asyncio.sleep(backoff.next_ms() / 1000)
        self._fit()

    def _fit_pattern(self) -> None:
        if self._resolving is not None and self._resolving.done():
            self._fit()

    def _fit(self) -> None:
        pattern = self._positions.pattern
        if pattern is None:
            return
        self._positions.topics = tuple(
            sorted(
                name
                for name, topic in self._cluster.topics.items()
                if pattern.fullmatch(name) and not (topic.is_internal and self._excludes_internal)
            )
        )
        self._changed(self._positions.topics)
