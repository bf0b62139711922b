"""Creation of the topic `__consumer_offsets`, and the mapping from group ids to its partitions."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from moldau.controller.requests import CreateTopicResult, NewTopic
from moldau.errors import CoordinatorNotAvailableError, MoldauError, TopicExistsError
from moldau.groups.java_hash import java_hash
from moldau.metadata.image import TopicImage
from moldau.metadata.loader import MetadataLoader
from moldau.observe.logging import get_logger
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings

log = get_logger(__name__)

OFFSETS_TOPIC = "__consumer_offsets"

_INT_MIN = -(2**31)


def partition_for(group_id: str, partitions: int) -> int:
    """Returns the partition of a group. Kafka selects the same partition."""
    code = java_hash(group_id)
    return 0 if code == _INT_MIN else abs(code) % partitions


def new_offsets_topic(settings: BrokerSettings) -> NewTopic:
    return NewTopic(
        OFFSETS_TOPIC,
        settings.offsets_topic_num_partitions,
        settings.offsets_topic_replication_factor,
        configs={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(settings.offsets_topic_segment_bytes),
        },
    )


class TopicCreator(Protocol):
    """The active controller, on this node or on another node."""

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[CreateTopicResult]: ...


class OffsetsTopic:
    """Creates the topic when a client first looks up a coordinator. Concurrent lookups share one creation."""

    def __init__(self, metadata: MetadataLoader, controller: TopicCreator, settings: EffectiveSettings) -> None:
        self._metadata = metadata
        self._controller = controller
        self._settings = settings
        self._creation: asyncio.Task[None] | None = None
        self._last_logged_error = ""

    async def ensure(self) -> TopicImage:
        """Returns the topic and creates it if needed. Raises CoordinatorNotAvailableError if that fails."""
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        if topic is not None:
            return topic
        if self._creation is None:
            self._creation = asyncio.get_running_loop().create_task(self._create())
        # The task is shielded, because a cancelled caller must not cancel the creation for other callers.
        await asyncio.shield(self._creation)
        topic = self._metadata.image.topics.get(OFFSETS_TOPIC)
        if topic is None:
            raise CoordinatorNotAvailableError(f"{OFFSETS_TOPIC} was deleted right after its creation")
        return topic

    async def _create(self) -> None:
        try:
            (created,) = await self._controller.create_topics([new_offsets_topic(self._settings.broker)])
            if created.error is not None and not isinstance(created.error, TopicExistsError):
                raise created.error
        except MoldauError as error:
            replicas = f"offsets.topic.replication.factor={self._settings.broker.offsets_topic_replication_factor}"
            self._log_once(f"{error} ({replicas})")
            raise CoordinatorNotAvailableError(f"creating {OFFSETS_TOPIC} with {replicas} failed: {error}") from error
        finally:
            self._creation = None

    def _log_once(self, reason: str) -> None:
        """Logs each new reason once, because clients retry many times a second."""
        if reason != self._last_logged_error:
            self._last_logged_error = reason
            log.warning("creating the offsets topic failed", topic=OFFSETS_TOPIC, reason=reason)
