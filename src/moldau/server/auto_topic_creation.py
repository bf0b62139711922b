"""Automatic creation of topics, in the background (Kafka's AutoTopicCreationManager).

A client that requests the metadata of a missing topic gets UNKNOWN_TOPIC_OR_PARTITION at once and retries. In the
meantime this broker sends the creation to the active controller.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from moldau.concurrency.tasks import cancel_and_wait
from moldau.controller.requests import NewTopic
from moldau.controller.topic_names import is_internal
from moldau.coordinator.state_topic import TopicCreator
from moldau.errors import MoldauError, TopicExistsError
from moldau.observe.logging import get_logger
from moldau.platform.clock import Clock

log = get_logger(__name__)

IN_FLIGHT_MAX = 1_000
"""The maximum number of topics that are being created. Further topics are created when their clients retry."""
FAILURES_MAX = 1_000
"""The maximum number of failed topics to remember. The oldest failures are forgotten first."""
RETRY_BACKOFF_MS = 500
"""How long a topic is not created again after a failure, because many clients retry ten times a second."""


class _Failure(NamedTuple):
    reason: str
    retry_at_ms: int


class AutoTopicCreationManager:
    """Creates each topic once, however many clients request it. Failed creations are repeated only after a backoff."""

    def __init__(
        self, controller: TopicCreator, state_topics: Mapping[str, Callable[[], Awaitable[object]]], clock: Clock
    ) -> None:
        """`state_topics` has a function for each internal topic that creates the topic with its own settings."""
        self._controller = controller
        self._state_topics = state_topics
        self._clock = clock
        self._in_flight: set[str] = set()
        self._failures: dict[str, _Failure] = {}
        """The latest failure of each topic, from the oldest to the newest."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.unexpected_errors = 0
        """The number of creations that failed with an unexpected exception."""

    def create_topics(self, names: Iterable[str]) -> None:
        """Starts the creation of missing topics with valid names and returns at once.

        Of the internal topics only the state topics of coordinators are created.
        """
        started = []
        for name in names:
            if self._may_start(name):
                self._in_flight.add(name)
                started.append(name)
        new_topics = [NewTopic(name) for name in started if name not in self._state_topics]
        if new_topics:
            self._start(partial(self._create, new_topics), [topic.name for topic in new_topics])
        for name in started:
            if name in self._state_topics:
                self._start(self._state_topics[name], [name])

    def _may_start(self, name: str) -> bool:
        if self._is_closed or name in self._in_flight or len(self._in_flight) >= IN_FLIGHT_MAX:
            return False
        if is_internal(name) and name not in self._state_topics:
            return False
        failure = self._failures.get(name)
        return failure is None or self._clock.monotonic_ms() >= failure.retry_at_ms

    def _start(self, creation: Callable[[], Awaitable[object]], names: Sequence[str]) -> None:
        task = asyncio.get_running_loop().create_task(self._run(creation, names))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, creation: Callable[[], Awaitable[object]], names: Sequence[str]) -> None:
        try:
            await creation()
        except MoldauError as error:
            for name in names:
                self._note_failure(name, error)
        except Exception as error:
            self.unexpected_errors += 1
            log.exception("automatic topic creation failed unexpectedly", topics=",".join(names))
            for name in names:
                self._note_failure(name, error)
        finally:
            self._in_flight.difference_update(names)

    async def _create(self, topics: Sequence[NewTopic]) -> None:
        for result in await self._controller.create_topics(topics):
            # Another broker may have created the topic at the same time.
            if result.error is None or isinstance(result.error, TopicExistsError):
                self._failures.pop(result.name, None)
            else:
                self._note_failure(result.name, result.error)

    def _note_failure(self, name: str, error: Exception) -> None:
        previous = self._failures.pop(name, None)
        reason = str(error)
        self._failures[name] = _Failure(reason, self._clock.monotonic_ms() + RETRY_BACKOFF_MS)
        if len(self._failures) > FAILURES_MAX:
            del self._failures[next(iter(self._failures))]
        # Log each new reason once, because clients retry many times a second.
        if previous is None or previous.reason != reason:
            log.warning("automatic topic creation failed", topic=name, reason=reason)

    async def close(self) -> None:
        """Cancels all creations. Their topics may still be created."""
        self._is_closed = True
        await cancel_and_wait(*self._tasks)
