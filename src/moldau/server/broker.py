"""The components of a node that request handlers use. The node creates them in startup order."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.server.cpu_budget import CpuBudget

if TYPE_CHECKING:
    from moldau.broker_lifecycle.driver import BrokerLifecycleManager
    from moldau.controller.channel import NodeToControllerChannel
    from moldau.controller.driver import QuorumController
    from moldau.groups.coordinator import GroupCoordinator
    from moldau.metadata.loader import MetadataLoader
    from moldau.partitions.delayed_operations import CallbackList
    from moldau.partitions.replica_manager import ReplicaManager
    from moldau.peers.client import PeerClient
    from moldau.platform import Platform
    from moldau.raft.driver import RaftClient
    from moldau.replication.driver import ReplicaFetcherManager
    from moldau.server.fetch_session import FetchSessionCache
    from moldau.settings.effective import EffectiveSettings
    from moldau.transactions.producer_id_manager import ProducerIdManager


@dataclass(slots=True)
class Broker:
    broker_id: int
    platform: "Platform"
    settings: "EffectiveSettings"
    """Static and dynamic settings of this broker and of every topic."""
    metadata: "MetadataLoader"
    """Its `image` is the MetadataImage of the committed metadata."""
    controller: "QuorumController"
    replica_manager: "ReplicaManager"
    groups: "GroupCoordinator"
    fetch_session_cache: "FetchSessionCache"
    producer_ids: "ProducerIdManager"
    shutdown_callbacks: "CallbackList"
    """Callbacks that complete delayed fetches at shutdown."""
    quorum: "RaftClient"
    controller_channel: "NodeToControllerChannel"
    """Sends requests to the active controller, which runs on this node or on another node."""
    lifecycle: "BrokerLifecycleManager"
    peers: "PeerClient"
    replication: "ReplicaFetcherManager"
    ready: asyncio.Event
    """Set once the cluster has accepted this node. Until then, client requests are parked."""
    cpu_budget: CpuBudget = field(default_factory=CpuBudget)
    """Limits CPU-heavy work that would block the event loop."""
