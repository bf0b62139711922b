"""The interface of request handlers: their registration, and the request context and broker that they receive."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from moldau.error_codes import error_code, error_message
from moldau.errors import MoldauError
from moldau.lag.isolation_levels import ConsumerIsolationLevels
from moldau.logs.store import LogName
from moldau.metrics.request_metrics import RequestMetrics
from moldau.metrics.topic_metrics import BrokerTopicMetrics
from moldau.metrics.windowed_rate import WindowedRate
from moldau.partitions.delayed_operations import CallbackList
from moldau.server.cpu_budget import CpuBudget
from moldau.server.metadata_cache import MetadataResponseCache
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

if TYPE_CHECKING:
    from moldau.broker_lifecycle.manager import BrokerLifecycleManager
    from moldau.controller.channel import NodeToControllerChannel
    from moldau.controller.quorum_controller import QuorumController
    from moldau.groups.coordinator import GroupCoordinator
    from moldau.lag.sampler import LagSampler
    from moldau.metadata.loader import MetadataLoader
    from moldau.network.socket_server import SocketServer
    from moldau.partitions.replica_manager import ReplicaManager
    from moldau.peers.client import PeerClient
    from moldau.platform import Platform
    from moldau.raft.raft_client import RaftClient
    from moldau.replication.driver import ReplicaFetcherManager
    from moldau.server.auto_topic_creation import AutoTopicCreationManager
    from moldau.server.broker_availability import BrokerAvailability
    from moldau.server.fetch_session import FetchSessionCache
    from moldau.server.late_requests import LateRequestFilter
    from moldau.settings.effective import EffectiveSettings
    from moldau.transactions.coordinator import TransactionCoordinator
    from moldau.transactions.marker_writer import MarkerWriter
    from moldau.transactions.producer_id_manager import ProducerIdManager
    from moldau.transactions.verification import TransactionVerifier


@dataclass(slots=True)
class Broker:
    """The components of a node that request handlers use. The node creates them in startup order."""

    broker_id: int
    platform: "Platform"
    settings: "EffectiveSettings"
    """Static and dynamic settings of this broker and of every topic."""
    metadata: "MetadataLoader"
    """Its `image` is the MetadataImage of the committed metadata."""
    controller: "QuorumController"
    replica_manager: "ReplicaManager"
    groups: "GroupCoordinator"
    transactions: "TransactionCoordinator"
    transaction_verifier: "TransactionVerifier"
    marker_writer: "MarkerWriter"
    late_requests: "LateRequestFilter"
    fetch_session_cache: "FetchSessionCache"
    producer_ids: "ProducerIdManager"
    shutdown_callbacks: CallbackList
    """Callbacks that complete delayed fetches at shutdown."""
    quorum: "RaftClient"
    controller_channel: "NodeToControllerChannel"
    """Sends requests to the active controller, which runs on this node or on another node."""
    auto_topic_creation: "AutoTopicCreationManager"
    lifecycle: "BrokerLifecycleManager"
    peers: "PeerClient"
    replication: "ReplicaFetcherManager"
    availability: "BrokerAvailability"
    """Other brokers that are suspected to be dead or were fenced a moment ago."""
    lag_sampler: "LagSampler"
    ready: asyncio.Event
    """Set once the cluster has accepted this node. Until then, client requests are parked."""
    listeners: "Sequence[SocketServer]" = ()
    cpu_budget: CpuBudget = field(default_factory=CpuBudget)
    """Limits CPU-heavy work that would block the event loop."""
    metadata_cache: MetadataResponseCache = field(default_factory=MetadataResponseCache)
    isolation_levels: ConsumerIsolationLevels = field(default_factory=ConsumerIsolationLevels)
    topic_metrics: BrokerTopicMetrics = field(default_factory=BrokerTopicMetrics)
    request_metrics: RequestMetrics = field(default_factory=RequestMetrics)
    loop_cpu: WindowedRate = field(default_factory=WindowedRate)
    """CPU time of the event loop's thread."""
    metadata_records: WindowedRate = field(default_factory=WindowedRate)
    """The end of the metadata log on this node."""
    client_request_count: int = 0
    """The number of requests from Kafka clients, without those of other nodes and of the HTTP API."""


@dataclass(slots=True, eq=False)
class ClientConnection:
    """The state of one client connection, which all its requests share."""

    peer: str
    listener: str
    number: int = 0
    """The connections of a node are numbered in the order in which they were opened."""
    client_software: str = ""
    unflushed: dict[LogName, None] = field(default_factory=dict)
    """The logs that Produce requests with acks 0 or 1 appended to. The next other request waits for their flush."""
    fetch_session_ids: list[int] = field(default_factory=list)
    """The fetch sessions that were created on this connection. They end with the connection."""
    close_callbacks: CallbackList = field(default_factory=CallbackList)
    """Callbacks that are called when the connection closes."""
    isolation_level: int | None = None
    """The isolation level of the consumer's latest Fetch; None before the first one."""
    broker_incarnation: tuple[int, int] | None = None
    """The id and epoch of the broker that sends heartbeats on this connection; None if there is no such broker."""


@dataclass(slots=True, eq=False)
class RequestContext:
    connection: ClientConnection
    api_version: int
    client_id: str | None
    is_forwarded: bool = False
    """Whether another node has checked and forwarded the request. This node does not forward such a request again."""
    release: Callable[[], None] = lambda: None
    """Releases the frame of the request. A handler calls it before a long wait, when it no longer uses the frame."""

    @property
    def client_host(self) -> str:
        """The client's address with a leading slash, as in Kafka's group descriptions."""
        return "/" + self.connection.peer.rpartition(":")[0]


class EncodedResponse(NamedTuple):
    """The encoded body of a response, which several requests may share."""

    body: bytes


RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT", bound="Mapping[str, object] | EncodedResponse | None")

HandlerOf = Callable[[RequestT, RequestContext, Broker], Awaitable[ResponseT]]
"""The handler of one API. Returns None if the request has no response (Produce with acks=0)."""

Handler = HandlerOf[Message, Mapping[str, object] | EncodedResponse | None]

ErrorResponse = Callable[[Any, int, MoldauError], Mapping[str, object]]
"""Builds the response to a request if the whole request failed. Takes the request, its API version and the error."""


class ApiRegistration(NamedTuple):
    handler: Handler
    min_version: int
    max_version: int
    advertised_min_version: int
    """The lowest version in the ApiVersions response. Produce advertises lower versions than it serves."""
    error_response: ErrorResponse
    forwarded: bool
    """Whether requests are forwarded to the active controller. The handler of such an API raises an exception if the
    whole request failed, for example NotControllerError."""
    inter_broker: bool
    """Whether the API is only for nodes. Such an API is served and advertised only on the inter-broker listener."""
    pipelined: bool
    """Whether a request may start while earlier requests of the same API on its connection have not completed. It may
    start once they all have called `release`. A request of any other API starts when all earlier requests of its
    connection have completed."""


class Registry(dict[ApiKey, ApiRegistration]):
    """Registrations by API key. The import of `moldau.handlers` fills the registry. Afterwards it does not change."""

    def pipelined_api_keys(self) -> frozenset[ApiKey]:
        return frozenset(api_key for api_key, api in self.items() if api.pipelined)


REGISTRY = Registry()


def top_level_error(request: object, version: int, error: MoldauError) -> Mapping[str, object]:
    """Builds the response of an API with a top-level error code. Only APIs with a message field send the message."""
    return {"error_code": error_code(error), "error_message": error_message(error)}


def handles(
    *,
    versions: tuple[int, int],
    advertised_min_version: int | None = None,
    error_response: ErrorResponse | None = None,
    forwarded: bool = False,
    inter_broker: bool = False,
    pipelined: bool = False,
) -> Callable[[HandlerOf[RequestT, ResponseT]], HandlerOf[RequestT, ResponseT]]:
    """Registers a handler: `async def list_groups(request, session, broker) -> response` for ApiKey.LIST_GROUPS.

    `wire/messages.pyi` defines the types of requests and responses. If a handler with an `error_response` raises a
    MoldauError, `error_response` builds the response. For this, the request and its frame stay in memory.
    Forwarded requests always have an error response, by default `top_level_error`.
    """

    def register(handler: HandlerOf[RequestT, ResponseT]) -> HandlerOf[RequestT, ResponseT]:
        api_key = ApiKey[handler.__name__.upper()]
        low, high = versions
        if error_response is not None and not forwarded:
            handler = _with_error_response(handler, error_response)
        REGISTRY[api_key] = ApiRegistration(
            cast(Handler, handler),
            low,
            high,
            low if advertised_min_version is None else advertised_min_version,
            error_response or top_level_error,
            forwarded,
            inter_broker,
            pipelined,
        )
        return handler

    return register


def _with_error_response(
    handler: HandlerOf[RequestT, ResponseT], error_response: ErrorResponse
) -> HandlerOf[RequestT, ResponseT]:
    @wraps(handler)
    async def handle(request: RequestT, session: RequestContext, broker: Broker) -> ResponseT:
        try:
            return await handler(request, session, broker)
        except MoldauError as error:
            return cast(ResponseT, error_response(request, session.api_version, error))

    return handle
