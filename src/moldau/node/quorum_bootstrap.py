"""The initial voters and the bootstrap servers of the quorum, from the settings."""

from collections.abc import Sequence

from moldau.errors import InvalidConfigError
from moldau.node.meta_properties import MetaProperties
from moldau.raft.messages import VoterEndpoint, VoterNode
from moldau.settings.broker import BrokerSettings
from moldau.settings.listeners import ListenerEndpoint, parse_listeners

BOOTSTRAP_ID_MAX = -2
"""The first id for bootstrap servers, whose real node ids are unknown. Further servers get the ids below it."""


def initial_voters(
    settings: BrokerSettings, meta: MetaProperties, addresses: Sequence[ListenerEndpoint]
) -> tuple[VoterNode, ...]:
    """Returns the voters in the settings. If there are none, returns this node, or no voters if the settings have
    bootstrap servers."""
    listener = settings.inter_broker_listener
    if settings.voters:
        return tuple(
            VoterNode(
                voter.node_id,
                meta.directory_id if voter.node_id == meta.node_id else None,
                (VoterEndpoint(listener, voter.host, voter.port),),
            )
            for voter in settings.voters
        )
    if settings.quorum_bootstrap:
        return ()
    own = tuple(VoterEndpoint(each.name, each.host, each.port) for each in addresses if each.name == listener)
    return (VoterNode(meta.node_id, meta.directory_id, own),)


def bootstrap_servers(settings: BrokerSettings) -> dict[int, tuple[str, int]]:
    servers = parse_listeners(settings.quorum_bootstrap, "controller.quorum.bootstrap.servers")
    return {BOOTSTRAP_ID_MAX - index: (server.host, server.port) for index, server in enumerate(servers)}


def check_quorum_settings(settings: BrokerSettings) -> None:
    """Raises InvalidConfigError for settings with which nodes would form separate clusters or lose votes."""
    is_shared = len(settings.voters) > 1 or settings.quorum_bootstrap
    if is_shared and not settings.cluster_id:
        raise InvalidConfigError(
            "cluster.id: all nodes of a cluster need the same id; set the one that `moldau cluster new-id` prints, for "
            "example"
        )
    if is_shared and settings.store == "memory" and len(settings.voters) > 1:
        # Reject store=memory, because a voter that loses its vote and its log could cause two leaders in one epoch or
        # the loss of committed records.
        raise InvalidConfigError("store: one of several voters must keep its metadata on disk; use `files`")
