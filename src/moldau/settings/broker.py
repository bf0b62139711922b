"""The settings of a broker, with the broker-wide defaults of topic settings as `topic_defaults`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from moldau.settings.listeners import ListenerEndpoint, check_listeners, parse_listeners
from moldau.settings.registry import INT_MAX, LONG_MAX, Alias, SettingDefinition, setting, setting_definitions
from moldau.settings.topic import TopicSettings
from moldau.settings.voters import VoterAddress, parse_voters

START_HERE = "Start here"
IDENTITY = "Identity"
CLUSTER = "Cluster"
REPLICATION = "Replication"
TOPICS = "Topics"
LIMITS = "Limits"
LOG_MAINTENANCE = "Log upkeep"
CONSUMER_GROUPS = "Groups"
PROCESS = "Process"
TOPIC_DEFAULTS = "Defaults of topic settings"
SECTIONS = (
    START_HERE,
    IDENTITY,
    CLUSTER,
    REPLICATION,
    TOPICS,
    LIMITS,
    CONSUMER_GROUPS,
    LOG_MAINTENANCE,
    PROCESS,
    TOPIC_DEFAULTS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    listen: tuple[str, ...] = setting(
        ("127.0.0.1:9092",),
        "listen",
        "The addresses to listen on, as host:port or NAME://host:port. Only this machine can connect unless "
        "you name another address; 0.0.0.0 needs advertised.listeners too. Port 0 takes any free port.",
        values="host:port or NAME://host:port, several with commas between",
        aliases=(Alias("listeners"),),
        section=START_HERE,
    )
    advertised_listeners: tuple[str, ...] = setting(
        (),
        "advertised.listeners",
        "The addresses that clients are told to connect to, matched to listen by name; those of listen when "
        "empty.",
        values="host:port or NAME://host:port, several with commas between",
        section=START_HERE,
    )
    data_dir: str = setting(
        "./moldau-data",
        "data.dir",
        "The directory that holds everything the broker keeps.",
        aliases=(Alias("log.dirs"), Alias("log.dir")),
        values="a path",
        check=lambda path: None if path else "A directory must be named",
        section=START_HERE,
    )
    store: str = setting(
        "files",
        "store",
        "Where records are kept: `files` in data.dir, or `memory`, which forgets all when the process ends.",
        choices=("files", "memory"),
        section=START_HERE,
    )
    node_id: int = setting(
        1,
        "node.id",
        "The number of this node in its cluster.",
        low=0,
        high=INT_MAX,
        aliases=(Alias("broker.id"),),
        section=IDENTITY,
    )
    cluster_id: str = setting(
        "",
        "cluster.id",
        "The id of the cluster; when empty, one is made at the first start and kept in data.dir.",
        section=IDENTITY,
    )
    rack: str = setting(
        "",
        "broker.rack",
        "Where this node stands: replicas are spread over racks, and consumers may read from their own.",
        section=IDENTITY,
    )
    quorum_voters: tuple[str, ...] = setting(
        (),
        "controller.quorum.voters",
        "The nodes that keep the cluster's metadata at its first start, each as id@host:port; this node alone "
        "when empty. Later changes are made with `moldau cluster`, and the metadata itself remembers them.",
        values="id@host:port, several with commas between",
        section=CLUSTER,
    )
    quorum_bootstrap: tuple[str, ...] = setting(
        (),
        "controller.quorum.bootstrap.servers",
        "Nodes of the cluster that a new node asks for its way in, when it is not among the first voters.",
        values="host:port, several with commas between",
        section=CLUSTER,
    )
    quorum_fetch_timeout_ms: int = setting(
        1_500,
        "controller.quorum.fetch.timeout.ms",
        "How long a voter hears nothing of the quorum's leader before it looks for another one, and how long a "
        "leader goes on without a majority. (Kafka's default is 2000.)",
        low=1,
        high=INT_MAX,
        section=CLUSTER,
    )
    quorum_election_timeout_ms: int = setting(
        500,
        "controller.quorum.election.timeout.ms",
        "How long an election may take before it is tried again, after a random time of as much at most. "
        "(Kafka's default is 1000.)",
        low=1,
        high=INT_MAX,
        section=CLUSTER,
    )
    quorum_request_timeout_ms: int = setting(
        1_000,
        "controller.quorum.request.timeout.ms",
        "How long a voter waits for the answer of another one. (Kafka's default is 2000.)",
        low=1,
        high=INT_MAX,
        section=CLUSTER,
    )
    broker_heartbeat_interval_ms: int = setting(
        500,
        "broker.heartbeat.interval.ms",
        "How often a broker tells the controller that it is alive. (Kafka's default is 2000.)",
        low=1,
        high=INT_MAX,
        section=CLUSTER,
    )
    broker_session_timeout_ms: int = setting(
        3_000,
        "broker.session.timeout.ms",
        "How long the controller waits for a silent broker before others lead in its place. A broker's lease ends "
        "a little sooner: from then on it takes no writes. (Kafka's default is 9000.)",
        low=1,
        high=INT_MAX,
        section=CLUSTER,
    )
    inter_broker_listener_name: str = setting(
        "",
        "inter.broker.listener.name",
        "The listener by which nodes talk to each other; the first one when empty. When it is named, requests that "
        "only nodes make are served there and nowhere else.",
        section=CLUSTER,
    )
    controlled_shutdown_enable: bool = setting(
        True,
        "controlled.shutdown.enable",
        "Hand leadership over to other nodes before stopping.",
        section=CLUSTER,
    )
    auto_leader_rebalance_enable: bool = setting(
        True,
        "auto.leader.rebalance.enable",
        "Give leadership back to the preferred replicas, by and by, when too many of a broker's are led elsewhere.",
        section=CLUSTER,
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300,
        "leader.imbalance.check.interval.seconds",
        "How often the controller looks whether leaders are where they should be.",
        low=1,
        section=CLUSTER,
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10,
        "leader.imbalance.per.broker.percentage",
        "The share of a broker's preferred partitions that may be led elsewhere before they are given back.",
        low=0,
        high=100,
        section=CLUSTER,
    )
    placement_policy: str = setting(
        "round-robin",
        "placement.policy",
        "How replicas of new partitions are placed: `round-robin` over racks and brokers, or `load`, which begins "
        "with the brokers that have the fewest.",
        choices=("round-robin", "load"),
        dynamic=True,
        section=CLUSTER,
    )
    metadata_snapshot_bytes: int = setting(
        20_971_520,
        "metadata.log.max.record.bytes.between.snapshots",
        "How many bytes the metadata log grows before a snapshot takes the place of its beginning.",
        low=1,
        section=CLUSTER,
    )
    metadata_snapshot_interval_ms: int = setting(
        3_600_000,
        "metadata.log.max.snapshot.interval.ms",
        "The longest time between two snapshots of the metadata while it changes; 0 sets no limit.",
        low=0,
        section=CLUSTER,
    )
    replica_lag_time_max_ms: int = setting(
        10_000,
        "replica.lag.time.max.ms",
        "How long a follower may be behind before it is no longer waited for. (Kafka's default is 30000.)",
        low=1,
        section=REPLICATION,
    )
    replica_fetch_max_bytes: int = setting(
        1_048_576,
        "replica.fetch.max.bytes",
        "The most bytes that a follower asks for of one partition; a larger batch comes whole all the same.",
        low=0,
        high=INT_MAX,
        section=REPLICATION,
    )
    replica_fetch_response_max_bytes: int = setting(
        10_485_760,
        "replica.fetch.response.max.bytes",
        "The most bytes that a follower asks for at a time, over all partitions.",
        low=0,
        high=INT_MAX,
        section=REPLICATION,
    )
    replica_fetch_wait_max_ms: int = setting(
        500,
        "replica.fetch.wait.max.ms",
        "How long a leader lets a follower wait while there is nothing new.",
        low=0,
        high=INT_MAX,
        section=REPLICATION,
    )
    replica_fetch_backoff_ms: int = setting(
        200,
        "replica.fetch.backoff.ms",
        "How long a follower rests after a fetch that failed. (Kafka's default is 1000.)",
        low=0,
        high=INT_MAX,
        section=REPLICATION,
    )
    leader_replication_throttled_rate: int = setting(
        LONG_MAX,
        "leader.replication.throttled.rate",
        "The most bytes a second that this broker sends of throttled replicas that are catching up.",
        low=0,
        dynamic=True,
        section=REPLICATION,
    )
    follower_replication_throttled_rate: int = setting(
        LONG_MAX,
        "follower.replication.throttled.rate",
        "The most bytes a second that this broker fetches of throttled replicas that are catching up.",
        low=0,
        dynamic=True,
        section=REPLICATION,
    )
    replica_selector_class: str = setting(
        "",
        "replica.selector.class",
        "Set to RackAwareReplicaSelector (Kafka's full class name is taken too) to send consumers that say their "
        "rack to a replica in it; when empty, everybody reads from leaders.",
        check=lambda name: (
            None
            if name.rpartition(".")[2] in ("", "RackAwareReplicaSelector", "LeaderSelector")
            else "No such replica selector"
        ),
        section=REPLICATION,
    )
    num_partitions: int = setting(
        1,
        "num.partitions",
        "How many partitions a topic gets when its creator does not say.",
        low=1,
        high=INT_MAX,
        section=TOPICS,
    )
    default_replication_factor: int = setting(
        1,
        "default.replication.factor",
        "How many replicas a partition gets when the topic's creator does not say.",
        low=1,
        high=INT_MAX,
        section=TOPICS,
    )
    auto_create_topics_enable: bool = setting(
        True,
        "auto.create.topics.enable",
        "Create a topic when a client that allows it first asks for it.",
        section=TOPICS,
    )
    delete_topic_enable: bool = setting(
        True,
        "delete.topic.enable",
        "Let clients delete topics.",
        section=TOPICS,
    )
    socket_request_max_bytes: int = setting(
        104_857_600,
        "socket.request.max.bytes",
        "The largest request that is read; a connection that announces a larger one is closed.",
        low=1,
        high=INT_MAX,
        section=LIMITS,
    )
    queued_max_request_bytes: int = setting(
        268_435_456,
        "queued.max.request.bytes",
        "The bytes of requests that may be in work over all connections; beyond it those that have some in work, or "
        "send large ones, are not read. A listener that only nodes use has a limit of its own, as large. (Kafka sets "
        "no limit by default.)",
        low=1,
        section=LIMITS,
    )
    max_connections: int = setting(
        10_000,
        "max.connections",
        "How many connections may be open; further ones are closed at once. Those of a listener that only nodes use "
        "are counted by themselves. (Kafka sets no limit by default.)",
        low=1,
        high=INT_MAX,
        dynamic=True,
        section=LIMITS,
    )
    max_connections_per_ip: int = setting(
        5_000,
        "max.connections.per.ip",
        "How many connections one address may hold open. (Kafka sets no limit by default.)",
        low=1,
        high=INT_MAX,
        dynamic=True,
        section=LIMITS,
    )
    connections_max_idle_ms: int = setting(
        600_000,
        "connections.max.idle.ms",
        "How long a connection may be silent before it is closed.",
        low=1,
        section=LIMITS,
    )
    fetch_max_bytes: int = setting(
        57_671_680,
        "fetch.max.bytes",
        "The most bytes of records in one fetch answer, whatever the client asks for.",
        low=1024,
        high=INT_MAX,
        section=LIMITS,
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        1000,
        "max.incremental.fetch.session.cache.slots",
        "How many fetch sessions are remembered; clients without one send and get all partitions every time.",
        low=0,
        high=INT_MAX,
        section=LIMITS,
    )
    group_min_session_timeout_ms: int = setting(
        6_000,
        "group.min.session.timeout.ms",
        "The shortest session timeout that a member of a group may ask for. Shorter ones find dead members "
        "sooner, and cost more heartbeats.",
        low=0,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000,
        "group.max.session.timeout.ms",
        "The longest session timeout that a member of a group may ask for. Longer ones leave more time "
        "between heartbeats, and leave the partitions of a dead member unread for longer.",
        low=0,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000,
        "group.initial.rebalance.delay.ms",
        "How long the first rebalance of an empty group waits for more members, so that a group which starts "
        "all at once rebalances once. 0 lets a lone consumer begin at once.",
        low=0,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    group_max_size: int = setting(
        INT_MAX,
        "group.max.size",
        "How many members a group may have.",
        low=1,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    offset_metadata_max_bytes: int = setting(
        4_096,
        "offset.metadata.max.bytes",
        "The longest text that a consumer may commit with an offset.",
        low=0,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    offsets_retention_minutes: int = setting(
        10_080,
        "offsets.retention.minutes",
        "How long committed offsets are kept after the last member of their group has left; those of "
        "consumers that are in no group, and of topics that a group no longer subscribes to, after their "
        "last commit.",
        low=1,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000,
        "offsets.retention.check.interval.ms",
        "How often groups are looked at for offsets that have expired.",
        low=1,
        section=CONSUMER_GROUPS,
    )
    offsets_commit_timeout_ms: int = setting(
        5_000,
        "offsets.commit.timeout.ms",
        "How long a group's change may take to be safe on disk before whoever waits for it is told to try "
        "again.",
        low=1,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    offsets_topic_num_partitions: int = setting(
        50,
        "offsets.topic.num.partitions",
        "The partitions of __consumer_offsets, over which groups are spread. It counts only until the first "
        "group makes the topic.",
        low=1,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    offsets_topic_replication_factor: int = setting(
        1,
        "offsets.topic.replication.factor",
        "The replicas of __consumer_offsets when it is made. (Kafka's default is 3; on one node that would "
        "keep groups from working at all.)",
        low=1,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600,
        "offsets.topic.segment.bytes",
        "The size of the segments of __consumer_offsets when it is made. Only closed segments are compacted: "
        "small ones make loading quicker.",
        low=1024,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    offsets_load_buffer_size: int = setting(
        5_242_880,
        "offsets.load.buffer.size",
        "How many bytes of __consumer_offsets are read at a time when groups are loaded.",
        low=1,
        high=INT_MAX,
        section=CONSUMER_GROUPS,
    )
    producer_id_expiration_ms: int = setting(
        86_400_000,
        "producer.id.expiration.ms",
        "How long a silent idempotent producer is remembered.",
        low=1,
        high=INT_MAX,
        section=LOG_MAINTENANCE,
    )
    log_retention_check_interval_ms: int = setting(
        300_000,
        "log.retention.check.interval.ms",
        "How often logs are looked at for records to delete.",
        low=1,
        section=LOG_MAINTENANCE,
    )
    log_cleaner_enable: bool = setting(
        True,
        "log.cleaner.enable",
        "Compact topics whose cleanup.policy has `compact`. When off, they grow without end.",
        section=LOG_MAINTENANCE,
    )
    log_cleaner_backoff_ms: int = setting(
        15_000,
        "log.cleaner.backoff.ms",
        "How long compaction rests when no log needs it.",
        low=1,
        dynamic=True,
        section=LOG_MAINTENANCE,
    )
    log_format: str = setting(
        "text",
        "log.format",
        "How the broker's own log lines look: `text` for people, `json` for machines.",
        choices=("text", "json"),
        section=PROCESS,
    )
    log_level: str = setting(
        "info",
        "log.level",
        "The least important log lines that are written.",
        choices=("debug", "info", "warning", "error"),
        section=PROCESS,
    )
    event_loop: str = setting(
        "auto",
        "event.loop",
        "The event loop to run on; `auto` takes uvloop where it is installed.",
        choices=("auto", "uvloop", "asyncio"),
        section=PROCESS,
    )
    topic_defaults: TopicSettings = field(default_factory=TopicSettings)
    explicitly_set: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """The names that a flag, the environment or the file set, even if to their default."""

    def __post_init__(self) -> None:
        # Also for settings made in Python: no node may start on a listener that fails open.
        check_listeners(self.listeners, self.advertised)
        parse_voters(self.quorum_voters)

    def find_conflict(self) -> str | None:
        """What two settings say against each other; such settings are refused."""
        request_bytes_max = self.socket_request_max_bytes
        if self.queued_max_request_bytes < request_bytes_max:
            return (
                f"queued.max.request.bytes ({self.queued_max_request_bytes}) is less than "
                f"socket.request.max.bytes ({request_bytes_max}): the largest request could never be read"
            )
        if self.topic_defaults.max_message_bytes > request_bytes_max:
            return (
                f"message.max.bytes ({self.topic_defaults.max_message_bytes}) is more than "
                f"socket.request.max.bytes ({request_bytes_max}): such a batch could never be read"
            )
        if self.broker_heartbeat_interval_ms * 2 > self.broker_session_timeout_ms:
            return (
                f"broker.session.timeout.ms ({self.broker_session_timeout_ms}) is less than two times "
                f"broker.heartbeat.interval.ms ({self.broker_heartbeat_interval_ms}): one late heartbeat would "
                f"cost a broker its place"
            )
        if self.inter_broker_listener not in [listener.name for listener in self.listeners]:
            return f"inter.broker.listener.name: no listener is named {self.inter_broker_listener}"
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            return (
                f"group.min.session.timeout.ms ({self.group_min_session_timeout_ms}) is more than "
                f"group.max.session.timeout.ms ({self.group_max_session_timeout_ms}): no member could join"
            )
        return self.topic_defaults.find_conflict()

    @property
    def voters(self) -> tuple[VoterAddress, ...]:
        """The first voters as the settings name them; empty where this node is alone."""
        return parse_voters(self.quorum_voters)

    @property
    def inter_broker_listener(self) -> str:
        return self.inter_broker_listener_name.upper() or self.listeners[0].name

    @property
    def listeners(self) -> tuple[ListenerEndpoint, ...]:
        return _listeners(self.listen, "listen")

    @property
    def advertised(self) -> tuple[ListenerEndpoint, ...]:
        return _listeners(self.advertised_listeners, "advertised.listeners")


@cache
def _listeners(addresses: tuple[str, ...], setting: str) -> tuple[ListenerEndpoint, ...]:
    """Asked for with every fetch of a follower."""
    return parse_listeners(addresses, setting)


@cache
def broker_definitions() -> Mapping[str, SettingDefinition]:
    """Every broker-wide setting by its one name, in the order people should read them."""
    found = list(setting_definitions(BrokerSettings).values()) + [
        _broker_wide_definition(each) for each in _topic_settings()
    ]
    found.sort(key=lambda each: SECTIONS.index(each.setting.section))
    return MappingProxyType({each.setting.name: each for each in found})


@cache
def broker_aliases() -> Mapping[str, tuple[SettingDefinition, Alias]]:
    """Every other name a broker-wide setting goes by."""
    registry = broker_definitions().values()
    return MappingProxyType(
        {alias.name: (each, alias) for each in registry for alias in each.setting.aliases}
    )


def get_value(settings: BrokerSettings, name: str) -> Any:
    found = broker_definitions()[name]
    return getattr(settings.topic_defaults if found.is_topic_default else settings, found.attribute)


def with_values(
    settings: BrokerSettings, values: Mapping[str, Any], explicitly_set: frozenset[str]
) -> BrokerSettings:
    """The same settings with other values, by name."""
    registry = broker_definitions()
    own = {
        registry[name].attribute: value
        for name, value in values.items()
        if not registry[name].is_topic_default
    }
    of_topics = {
        registry[name].attribute: value for name, value in values.items() if registry[name].is_topic_default
    }
    topic_defaults = dataclasses.replace(settings.topic_defaults, **of_topics)
    return dataclasses.replace(settings, **own, topic_defaults=topic_defaults, explicitly_set=explicitly_set)


def _topic_settings() -> tuple[SettingDefinition, ...]:
    return tuple(setting_definitions(TopicSettings).values())


def _broker_wide_definition(is_topic_default: SettingDefinition) -> SettingDefinition:
    made = is_topic_default.setting
    assert made.broker_name is not None, made.name
    doc = made.doc if made.broker_name == made.name else f"The default of {made.name}. {made.doc}"
    broker_wide = dataclasses.replace(
        made,
        name=made.broker_name,
        broker_name=None,
        doc=doc,
        dynamic=True,
        section=made.section or TOPIC_DEFAULTS,
    )
    return dataclasses.replace(is_topic_default, setting=broker_wide, is_topic_default=True)
