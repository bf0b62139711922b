"""What request handlers can reach: the parts of a node, by name. The node fills it in boot order."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.server.turns import Turns

if TYPE_CHECKING:
    from moldau.broker_lifecycle.driver import Membership
    from moldau.controller.driver import Controller
    from moldau.controller.gateway import ControllerGateway
    from moldau.groups.coordinator import GroupCoordinator
    from moldau.metadata.loader import MetadataLoader
    from moldau.partitions.table import PartitionTable
    from moldau.partitions.waiting import Listeners
    from moldau.peers.peers import Peers
    from moldau.platform import Platform
    from moldau.raft.driver import Quorum
    from moldau.replication.driver import Replication
    from moldau.server.fetch_sessions import FetchSessions
    from moldau.settings.effective import EffectiveSettings
    from moldau.transactions.producer_ids import ProducerIds


@dataclass(slots=True)
class Broker:
    broker_id: int
    platform: "Platform"
    settings: "EffectiveSettings"
    """Static and dynamic settings of this broker and of every topic."""
    metadata: "MetadataLoader"
    """`.image` is the committed ClusterImage."""
    controller: "Controller"
    partitions: "PartitionTable"
    groups: "GroupCoordinator"
    fetch_sessions: "FetchSessions"
    producer_ids: "ProducerIds"
    long_polls: "Listeners"
    """Fetches that wait for news, to be told when the node stops that there will be none."""
    quorum: "Quorum"
    gateway: "ControllerGateway"
    """The active controller, wherever it is."""
    membership: "Membership"
    peers: "Peers"
    replication: "Replication"
    ready: asyncio.Event
    """Set once the cluster has taken this node: until then clients wait, and only nodes are served."""
    turns: Turns = field(default_factory=Turns)
    """For work that would hold up the event loop."""
