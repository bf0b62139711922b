"""Creation of the internal topic that stores the state of a coordinator."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from moldau.controller.requests import CreateTopicResult, NewTopic
from moldau.errors import CoordinatorNotAvailableError, MoldauError, TopicExistsError
from moldau.metadata.image import TopicImage
from moldau.metadata.loader import MetadataLoader
from moldau.observe.logging import get_logger

log = get_logger(__name__)


class TopicCreator(Protocol):
    """The active controller, on this node or on another node."""

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[CreateTopicResult]: ...


class StateTopic:
    """Creates the topic when a client first looks up a coordinator. Concurrent lookups share one creation."""

    def __init__(
        self,
        name: str,
        metadata: MetadataLoader,
        controller: TopicCreator,
        *,
        new_topic: Callable[[], NewTopic],
        replication_factor_setting: str,
    ) -> None:
        self.name = name
        self._metadata = metadata
        self._controller = controller
        self._new_topic = new_topic
        self._replication_factor_setting = replication_factor_setting
        self._creation: asyncio.Task[None] | None = None
        self._last_logged_error = ""

    async def ensure(self) -> TopicImage:
        """Returns the topic and creates it if needed. Raises CoordinatorNotAvailableError if that fails."""
        topic = self._metadata.image.topics.get(self.name)
        if topic is not None:
            return topic
        if self._creation is None:
            self._creation = asyncio.get_running_loop().create_task(self._create())
        # The task is shielded, because a cancelled caller must not cancel the creation for other callers.
        await asyncio.shield(self._creation)
        topic = self._metadata.image.topics.get(self.name)
        if topic is None:
            raise CoordinatorNotAvailableError(f"{self.name} was deleted right after its creation")
        return topic

    async def _create(self) -> None:
        new_topic = self._new_topic()
        try:
            (created,) = await self._controller.create_topics([new_topic])
            if created.error is not None and not isinstance(created.error, TopicExistsError):
                raise created.error
        except MoldauError as error:
            replicas = f"{self._replication_factor_setting}={new_topic.replication_factor}"
            self._log_once(f"{error} ({replicas})")
            raise CoordinatorNotAvailableError(f"creating {self.name} with {replicas} failed: {error}") from error
        finally:
            self._creation = None

    def _log_once(self, reason: str) -> None:
        """Logs each new reason once, because clients retry many times a second."""
        if reason != self._last_logged_error:
            self._last_logged_error = reason
            log.warning("creating an internal topic failed", topic=self.name, reason=reason)
