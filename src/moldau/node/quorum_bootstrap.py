"""Who votes at the first start of a cluster, and whom a new node asks for its way in, as the settings say."""

from collections.abc import Sequence

from moldau.errors import InvalidConfigError
from moldau.node.meta_properties import MetaProperties
from moldau.raft.messages import VoterEndpoint, VoterNode
from moldau.settings.broker import BrokerSettings
from moldau.settings.listeners import ListenerEndpoint, parse_listeners

BOOTSTRAP_ID_MAX = -2
"""Servers whose node ids are not known go by negative ones, from here down."""


def initial_voters(
    settings: BrokerSettings, who: MetaProperties, addresses: Sequence[ListenerEndpoint]
) -> tuple[VoterNode, ...]:
    """This node alone, where nothing else is said; nobody, where it is to find its way by bootstrap servers."""
    listener = settings.inter_broker_listener
    if settings.voters:
        return tuple(
            VoterNode(
                voter.node_id,
                who.directory_id if voter.node_id == who.node_id else None,
                (VoterEndpoint(listener, voter.host, voter.port),),
            )
            for voter in settings.voters
        )
    if settings.quorum_bootstrap:
        return ()
    own = tuple(VoterEndpoint(each.name, each.host, each.port) for each in addresses if each.name == listener)
    return (VoterNode(who.node_id, who.directory_id, own),)


def bootstrap_servers(settings: BrokerSettings) -> dict[int, tuple[str, int]]:
    servers = parse_listeners(settings.quorum_bootstrap, "controller.quorum.bootstrap.servers")
    return {BOOTSTRAP_ID_MAX - number: (each.host, each.port) for number, each in enumerate(servers)}


def check_quorum_settings(settings: BrokerSettings) -> None:
    """Refuses settings by which nodes would form clusters of their own, or talk to themselves."""
    is_shared = len(settings.voters) > 1 or settings.quorum_bootstrap
    if is_shared and not settings.cluster_id:
        raise InvalidConfigError(
            "cluster.id: nodes of one cluster need one id; give all of them the same, for example the one that "
            "`moldau cluster new-id` prints"
        )
    if is_shared and settings.store == "memory" and len(settings.voters) > 1:
        # A voter that forgets its votes and its log could help to elect two leaders, or lose what was agreed on.
        raise InvalidConfigError(
            "store: a node that votes in a cluster keeps its metadata on disk; use `files`"
        )
