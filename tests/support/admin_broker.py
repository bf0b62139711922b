"""A fake broker for admin handlers: requests and responses go through the codec, and the controller decides like the
real one but keeps its state in memory."""

import asyncio
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType, SimpleNamespace
from typing import Any, TypeVar
from uuid import UUID

from moldau.controller.configuration_control import alter_configs
from moldau.controller.replica_readiness import UnreadyReplicas
from moldau.controller.requests import (
    ConfigChange,
    ConfigResult,
    CreateTopicResult,
    NewTopic,
    PartitionIncrease,
    TopicRef,
    TopicResult,
)
from moldau.controller.state import ControllerState
from moldau.controller.topics import create_partitions, create_topics, delete_topics
from moldau.coordinator import CoordinatorResult
from moldau.errors import MoldauError
from moldau.handlers import REGISTRY
from moldau.logs.store import LogName
from moldau.metadata.image import (
    BrokerRegistration,
    ConfigResource,
    Endpoint,
    MetadataImage,
    PartitionRegistration,
    TopicImage,
)
from moldau.metadata.records import Record
from moldau.server.api import ClientConnection, EncodedResponse, RequestContext
from moldau.server.cpu_budget import CpuBudget
from moldau.server.forwarding import execute_forwarded
from moldau.server.metadata_cache import MetadataResponseCache
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder, has_flexible_header
from moldau.wire.frames import encode_request_header

LISTENER = "CLIENTS"
NOW_MS = 5_000

T = TypeVar("T")


def topic_id(number: int) -> UUID:
    return UUID(int=0xA0000 + number)


def versions_of(api_key: ApiKey) -> list[int]:
    served = REGISTRY[api_key]
    return list(range(served.min_version, served.max_version + 1))


def decoded_request(api_key: ApiKey, version: int, **fields: Any) -> Message:
    """Returns a request as a handler gets it: encoded and decoded."""
    data = bytearray()
    encoder(api_key, version, "request")(data, fields)
    return decoder(api_key, version, "request")(memoryview(data))


class FakeController:
    """The controller's decisions, applied at once without quorum and log. Raises `refuses` if it is set."""

    def __init__(self, broker: "AdminBroker") -> None:
        self.refuses: MoldauError | None = None
        self.unready: Mapping[str, UnreadyReplicas] | MoldauError = {}
        self.waited_for: tuple[list[str], int, dict[str, int]] | None = None
        self._broker = broker
        self._state = ControllerState(broker.metadata.image, broker.settings.static)
        self._random = random.Random(1)

    def _take(self, decision: CoordinatorResult[Record, T]) -> T:
        if self.refuses is not None:
            raise self.refuses
        self._state.apply(decision.records, self._state.image.offset + 1 + len(decision.records))
        self._broker.metadata.image = self._state.image
        self._broker.settings = EffectiveSettings(self._broker.settings.static, self._state.image)
        return decision.response

    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[CreateTopicResult]:
        return self._take(create_topics(self._state, topics, self._random, validate_only=validate_only))

    async def delete_topics(self, topics: Sequence[TopicRef]) -> list[TopicResult]:
        return self._take(delete_topics(self._state, topics))

    async def create_partitions(
        self, changes: Sequence[PartitionIncrease], *, validate_only: bool = False
    ) -> list[TopicResult]:
        return self._take(create_partitions(self._state, changes, self._random, validate_only=validate_only))

    async def wait_replicas_ready(
        self, topics: Iterable[str], deadline_ms: int, *, first_partition: Mapping[str, int] | None = None
    ) -> dict[str, UnreadyReplicas]:
        """All topics are ready at once, except those in `unready`."""
        self.waited_for = (list(topics), deadline_ms, dict(first_partition or {}))
        if isinstance(self.unready, MoldauError):
            raise self.unready
        return {name: self.unready[name] for name in self.waited_for[0] if name in self.unready}

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, Sequence[ConfigChange]],
        *,
        incremental: bool,
        validate_only: bool = False,
    ) -> list[ConfigResult]:
        return self._take(alter_configs(self._state, changes, incremental=incremental, validate_only=validate_only))


@dataclass
class FakeReplicaManager:
    """The partitions that DescribeLogDirs reads: sizes by partition, and the volume."""

    sizes: dict[LogName, int] = field(default_factory=dict)
    space: tuple[int, int] | OSError = (1000, 400)

    def __iter__(self) -> Any:
        for name in sorted(self.sizes):
            yield SimpleNamespace(
                name=name, follower=SimpleNamespace(lag=0), log=SimpleNamespace(size=self.sizes[name])
            )

    @property
    def store(self) -> Any:
        def space() -> tuple[int, int]:
            if isinstance(self.space, OSError):
                raise self.space
            return self.space

        return SimpleNamespace(space=space)


class FakeAvailability:
    """Records for which leaders the latest request would wait if they were suspected."""

    def __init__(self, metadata: Any) -> None:
        self.suspected: set[int] = set()
        self.recently_fenced: set[int] = set()
        self.waited_for: Container[int] = ()
        self._metadata = metadata

    def is_listed(self, broker: BrokerRegistration) -> bool:
        return not broker.fenced or broker.broker_id in self.recently_fenced

    async def wait_for_successors(self, leaders_in: Callable[[MetadataImage], Container[int]]) -> None:
        self.waited_for = leaders_in(self._metadata.image)


def image_of(
    topics: Mapping[str, int],
    *,
    brokers: Iterable[BrokerRegistration] = (),
    configs: Mapping[ConfigResource, Mapping[str, str]] = MappingProxyType({}),
) -> MetadataImage:
    """Topics by their number of partitions, on broker 1; ids are numbered in the order of the mapping."""
    found = {
        name: TopicImage(
            name, topic_id(number), tuple(PartitionRegistration(i, (1,), (1,), 1, 3, 0) for i in range(count))
        )
        for number, (name, count) in enumerate(topics.items())
    }
    all_brokers = {each.broker_id: each for each in (broker_image(1), *brokers)}
    return MetadataImage(
        cluster_id="the-cluster",
        controller_id=1,
        brokers=all_brokers,
        topics=found,
        topic_names={topic.topic_id: name for name, topic in found.items()},
        configs=configs,
    )


def broker_image(broker_id: int, *, fenced: bool = False, listener: str = LISTENER) -> BrokerRegistration:
    endpoint = Endpoint(listener, f"host{broker_id}", 9000 + broker_id)
    return BrokerRegistration(broker_id, 7, UUID(int=broker_id), (endpoint,), f"rack{broker_id}", fenced)


class AdminBroker:
    def __init__(self, image: MetadataImage, settings: BrokerSettings | None = None) -> None:
        self.broker_id = 1
        self.platform = SimpleNamespace(clock=SimpleNamespace(monotonic_ms=lambda: NOW_MS))
        self.metadata = SimpleNamespace(image=image)
        self.settings = EffectiveSettings(settings or BrokerSettings(), image)
        self.controller = FakeController(self)
        self.controller_channel = SimpleNamespace(
            create_topics=self.controller.create_topics, send=self._send_to_controller
        )
        self.ready = SimpleNamespace(is_set=lambda: True)
        self.lifecycle = SimpleNamespace(lease=SimpleNamespace(is_valid=lambda: True))
        self.replica_manager = FakeReplicaManager()
        self.availability = FakeAvailability(self.metadata)
        self.cpu_budget = CpuBudget()
        self.metadata_cache = MetadataResponseCache()

    def send(self, api_key: ApiKey, version: int | None = None, **request: Any) -> Message:
        """Sends a request, by default in the newest version, and returns the decoded response."""
        if version is None:
            version = REGISTRY[api_key].max_version
        session = RequestContext(ClientConnection("127.0.0.1:5000", LISTENER), version, "tests")
        decoded = decoded_request(api_key, version, **request)
        response = asyncio.run(handle(api_key, decoded, session, self))
        answered = bytearray()
        if isinstance(response, EncodedResponse):
            answered += response.body
        else:
            encoder(api_key, version, "response")(answered, response)
        return decoder(api_key, version, "response")(memoryview(answered))

    async def _send_to_controller(self, api: ApiKey, version: int, tree: Mapping[str, Any]) -> Message:
        request = encode_request_header(api, version, 0, "node-1")
        encoder(api, version, "request")(request, tree)
        broker: Any = self
        data = memoryview(await execute_forwarded(memoryview(request), b"", broker))
        return decoder(api, version, "response")(data[5 if has_flexible_header(api, version) else 4 :])


async def handle(api: ApiKey, request: Message, session: RequestContext, broker: Any) -> Any:
    """Runs a handler; an error of the whole request becomes the API's error response."""
    served = REGISTRY[api]
    try:
        return await served.handler(request, session, broker)
    except MoldauError as error:
        if served.error_response is None:
            raise
        return served.error_response(request, session.api_version, error)
