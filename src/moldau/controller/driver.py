"""The controller as the rest of the node sees it: awaitable calls that return when the change is committed
and every part of this node has taken it."""

from collections.abc import Mapping, Sequence

from moldau.controller.brokers import (
    METADATA_VERSION,
    SUPPORTED_FEATURES,
    Registration,
    allocate_producer_ids,
    register_broker,
    update_features,
)
from moldau.controller.configs import alter_configs
from moldau.controller.ids import Randomness
from moldau.controller.requests import (
    ConfigChange,
    ConfigResult,
    MorePartitions,
    NewTopic,
    TopicCreated,
    TopicRef,
    TopicResult,
)
from moldau.controller.state import ControllerState
from moldau.controller.topics import create_partitions, create_topics, delete_topics
from moldau.decisions.runtime import DecisionRuntime
from moldau.errors import NotControllerError, StorageError
from moldau.metadata.image import ClusterImage, ConfigResource
from moldau.metadata.loader import MetadataLoader
from moldau.metadata.records import Record, encode
from moldau.observe.logging import get_logger
from moldau.quorum.driver import Quorum
from moldau.settings.effective import EffectiveSettings

log = get_logger("controller")


class _MetadataLog:
    """The quorum's log as the decision runtime sees it."""

    def __init__(self, quorum: Quorum) -> None:
        self._quorum = quorum

    async def append(self, records: Sequence[Record]) -> int:
        return await self._quorum.append([encode(record) for record in records]) + 1


class Controller:
    def __init__(
        self,
        node_id: int,
        quorum: Quorum,
        loader: MetadataLoader,
        settings: EffectiveSettings,
        random: Randomness,
    ) -> None:
        self._node_id = node_id
        self._quorum = quorum
        self._loader = loader
        self._settings = settings
        self._random = random
        self._runtime: DecisionRuntime[ControllerState, Record] = DecisionRuntime(
            _MetadataLog(quorum), refuse_with=_not_controller
        )
        loader.listen(self._published)
        loader.on_failure(self._failed)

    @property
    def is_active(self) -> bool:
        """Whether this node's controller is the one that decides."""
        return self._runtime.is_loaded

    @property
    def controller_id(self) -> int:
        """The active controller's node, -1 while none is known."""
        return self._loader.image.controller_id

    @property
    def epoch(self) -> int:
        return self._loader.image.controller_epoch

    async def start(self) -> None:
        """Joins the quorum; returns when the cluster has a controller and this node its committed image."""
        await self._quorum.start()
        await self._loader.wait_for(0)
        if self.is_active and METADATA_VERSION not in self._loader.image.features:
            levels = {name: high for name, (_, high) in SUPPORTED_FEATURES.items()}
            await self._runtime.submit(lambda state: update_features(state, levels))

    async def close(self) -> None:
        """Refuses from now on; returns when no decision is being appended any more."""
        await self._runtime.close(NotControllerError("the controller is shutting down"))

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[TopicCreated]:
        return await self._runtime.submit(
            lambda state: create_topics(
                state, topics, self._settings, self._random, validate_only=validate_only
            )
        )

    async def delete_topics(self, topics: Sequence[TopicRef]) -> list[TopicResult]:
        return await self._runtime.submit(lambda state: delete_topics(state, topics, self._settings))

    async def create_partitions(
        self, changes: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> list[TopicResult]:
        return await self._runtime.submit(
            lambda state: create_partitions(state, changes, self._random, validate_only=validate_only)
        )

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[ConfigChange]],
        *,
        incremental: bool,
        validate_only: bool = False,
    ) -> list[ConfigResult]:
        return await self._runtime.submit(
            lambda state: alter_configs(
                state, changes, self._settings, incremental=incremental, validate_only=validate_only
            )
        )

    async def allocate_producer_ids(self) -> range:
        """A block of producer ids that nobody has had before."""
        return await self._runtime.submit(lambda state: allocate_producer_ids(state, self._node_id))

    async def register_broker(self, broker: Registration) -> int:
        """The broker's epoch."""
        return await self._runtime.submit(lambda state: register_broker(state, broker))

    def _published(self, image: ClusterImage) -> None:
        """An image that all of this node has taken. It holds the record by which its controller began, and
        all before it, so from here on that controller may decide."""
        elected = image.controller_id == self._node_id and image.controller_epoch == self._quorum.epoch
        if self.is_active and not elected:
            self._runtime.unload(_not_controller())
        elif elected and self._quorum.is_leader and not self.is_active:
            log.info("controller is active", epoch=image.controller_epoch, offset=image.offset)
            self._runtime.load(ControllerState(image), image.offset + 1)
        self._runtime.committed(image.offset + 1)

    def _failed(self, error: BaseException) -> None:
        self._runtime.unload(StorageError(f"the metadata of this node has failed: {error}"))


def _not_controller() -> NotControllerError:
    return NotControllerError("This is not the correct controller for this cluster.")
