"""The topic that groups live in: how they are spread over its partitions, and how it comes to be."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from moldau.controller.requests import CreateTopicResult, NewTopic
from moldau.errors import (
    CoordinatorNotAvailableError,
    InvalidReplicationFactorError,
    MoldauError,
    TopicExistsError,
)
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
    """The partition that holds a group. As Kafka has it, so that its logs can be taken over."""
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
    """The active controller, wherever it is."""

    async def create_topics(self, topics: Sequence[NewTopic]) -> list[CreateTopicResult]: ...


class OffsetsTopic:
    """Made when the first group asks for its coordinator; all who ask meanwhile wait for the same creation."""

    def __init__(
        self, metadata: MetadataLoader, controller: TopicCreator, settings: EffectiveSettings
    ) -> None:
        self._metadata = metadata
        self._controller = controller
        self._settings = settings
        self._creation: asyncio.Task[None] | None = None
        self._last_logged_error = ""

    async def ensure(self) -> TopicImage:
        """The topic, ready for use on this node; raises CoordinatorNotAvailableError."""
        found = self._metadata.image.topics.get(OFFSETS_TOPIC)
        if found is not None:
            return found
        if self._creation is None:
            self._creation = asyncio.get_running_loop().create_task(self._create())
        # A caller that gives up must not take the creation from those who wait for it too.
        await asyncio.shield(self._creation)
        found = self._metadata.image.topics.get(OFFSETS_TOPIC)
        if found is None:
            raise CoordinatorNotAvailableError(f"{OFFSETS_TOPIC} was deleted as soon as it was made")
        return found

    async def _create(self) -> None:
        try:
            self._check_broker_count()
            (created,) = await self._controller.create_topics([new_offsets_topic(self._settings.broker)])
            if created.error is not None and not isinstance(created.error, TopicExistsError):
                raise created.error
        except MoldauError as error:
            self._log_once(str(error))
            raise CoordinatorNotAvailableError(f"{OFFSETS_TOPIC} cannot be made: {error}") from error
        finally:
            self._creation = None

    def _check_broker_count(self) -> None:
        """A topic with fewer replicas than it should have would stay so: better to have none until there are enough
        brokers."""
        wanted = self._settings.broker.offsets_topic_replication_factor
        active = sum(broker.is_active for broker in self._metadata.image.brokers.values())
        if active < wanted:
            raise InvalidReplicationFactorError(
                f"it is to have {wanted} replicas and {active} brokers are there: start more, or lower "
                f"offsets.topic.replication.factor"
            )

    def _log_once(self, why: str) -> None:
        """Once for each reason: clients ask again many times a second."""
        if why != self._last_logged_error:
            self._last_logged_error = why
            log.warning("the topic of groups cannot be made", topic=OFFSETS_TOPIC, why=why)
