"""Broker settings, with the broker-wide defaults of topic settings in `topic_defaults`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from moldau.errors import InvalidConfigError
from moldau.settings.listeners import ListenerEndpoint, check_listeners, parse_listeners
from moldau.settings.postgres_url import STORES, check_schema, check_store, is_postgres_url, split_password
from moldau.settings.registry import INT_MAX, LONG_MAX, Alias, SettingDefinition, setting, setting_definitions
from moldau.settings.topic import TopicSettings
from moldau.settings.voters import VoterAddress, parse_voters

START_HERE = "Start here"
TOPIC_DEFAULTS = "Topic defaults"
SECTION_STARTS = {
    "listen": START_HERE,
    "node.id": "Identity",
    "controller.quorum.voters": "Cluster",
    "replica.lag.time.max.ms": "Replication",
    "num.partitions": "Topics",
    "socket.request.max.bytes": "Limits",
    "group.min.session.timeout.ms": "Consumer groups",
    "transaction.max.timeout.ms": "Transactions",
    "producer.id.expiration.ms": "Log maintenance",
    "postgres.schema": "Postgres",
    "http.port": "HTTP",
    "lag.sample.interval.ms": "Observation",
    "log.format": "Process",
}
"""Maps the first setting of each section to the section's title in the documentation, in declaration order."""
_cached_listeners = cache(parse_listeners)
"""Parses listeners only once, because `inter_broker_listener` is read for every follower fetch."""
SECTIONS = (*SECTION_STARTS.values(), TOPIC_DEFAULTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    listen: tuple[str, ...] = setting(
        ("127.0.0.1:9092",),
        "Addresses to listen on, as host:port or NAME://host:port. The default accepts connections from this machine "
        "only; 0.0.0.0 also needs advertised.listeners. Port 0 picks a free port.",
        values="comma-separated host:port or NAME://host:port",
        aliases=(Alias("listeners"),),
    )
    advertised_listeners: tuple[str, ...] = setting(
        (),
        "Addresses that clients connect to, matched with listen by listener name; if empty, the addresses of listen.",
        values="comma-separated host:port or NAME://host:port",
    )
    data_dir: str = setting(
        "./moldau-data",
        "Directory for all data of the node.",
        aliases=(Alias("log.dirs"), Alias("log.dir")),
        values="a path",
        check=lambda path: None if path else "Value must not be empty",
    )
    store: str = setting(
        "files",
        "Storage of the node: `files` in data.dir; `memory`, which loses everything when the process exits; or the URL "
        "of a Postgres database. In a URL, write / ? # @ in a password as %2F %3F %23 %40.",
        choices=("files", "memory", "postgresql://"),
        values=STORES,
        check=check_store,
    )
    node_id: int = setting(
        1, "Id of this node, unique in the cluster.", limits=(0, INT_MAX), aliases=(Alias("broker.id"),)
    )
    cluster_id: str = setting(
        "", "Id of the cluster; if empty, it is generated on first startup and stored in data.dir."
    )
    rack: str = setting(
        "",
        "Rack of this node. Replicas are spread over racks, and consumers can fetch from a replica in their rack.",
        name="broker.rack",
    )
    quorum_voters: tuple[str, ...] = setting(
        (),
        "Voters of the metadata quorum when the cluster is created, each as id@host:port; if empty, this node is the "
        "only voter. Change them later with `moldau cluster`: the metadata log stores the current voters.",
        name="controller.quorum.voters",
        values="comma-separated id@host:port",
    )
    quorum_bootstrap: tuple[str, ...] = setting(
        (),
        "Nodes through which a new node that is not listed in controller.quorum.voters finds the cluster.",
        name="controller.quorum.bootstrap.servers",
        values="comma-separated host:port",
    )
    quorum_fetch_timeout_ms: int = setting(
        1_500,
        "How long a voter waits for a successful fetch from the quorum leader before it becomes a candidate, and how "
        "long a leader stays leader without fetches from a majority. (Kafka's default is 2000.)",
        name="controller.quorum.fetch.timeout.ms",
        limits=(1, INT_MAX),
    )
    quorum_election_timeout_ms: int = setting(
        500,
        "Timeout of an election. A candidate starts the next election after a random delay of up to the same time. "
        "(Kafka's default is 1000.)",
        name="controller.quorum.election.timeout.ms",
        limits=(1, INT_MAX),
    )
    quorum_request_timeout_ms: int = setting(
        1_000,
        "How long a voter waits for a response from another voter. (Kafka's default is 2000.)",
        name="controller.quorum.request.timeout.ms",
        limits=(1, INT_MAX),
    )
    broker_heartbeat_interval_ms: int = setting(
        500,
        "Interval between heartbeats from a broker to the controller. (Kafka's default is 2000.)",
        limits=(1, INT_MAX),
    )
    broker_session_timeout_ms: int = setting(
        3_000,
        "How long the controller waits for a heartbeat before it fences a broker and elects other leaders. The "
        "broker's own lease expires slightly earlier, and it then rejects writes. (Kafka's default is 9000.)",
        limits=(1, INT_MAX),
    )
    inter_broker_listener_name: str = setting(
        "",
        "Listener for requests between nodes; if empty, the first listener. If it is set, inter-broker requests are "
        "accepted on this listener only.",
    )
    controlled_shutdown_enable: bool = setting(True, "Move leadership to other nodes before shutting down.")
    auto_leader_rebalance_enable: bool = setting(
        True,
        "Move leadership back to the preferred replicas if too many of a broker's preferred partitions are led by "
        "others.",
    )
    leader_imbalance_check_interval_seconds: int = setting(
        300, "How often the controller checks the leader imbalance.", limits=(1, LONG_MAX)
    )
    leader_imbalance_per_broker_percentage: int = setting(
        10,
        "Percentage of a broker's preferred partitions that other brokers may lead before leadership is moved back.",
        limits=(0, 100),
    )
    placement_policy: str = setting(
        "round-robin",
        "Placement of the replicas of new partitions: `round-robin` over racks and brokers, or `load`, which prefers "
        "the brokers with the fewest replicas.",
        choices=("round-robin", "load"),
        dynamic=True,
    )
    metadata_snapshot_bytes: int = setting(
        20_971_520,
        "Bytes of new metadata records after which a snapshot is written and the older part of the log is removed.",
        name="metadata.log.max.record.bytes.between.snapshots",
        limits=(1, LONG_MAX),
    )
    metadata_snapshot_interval_ms: int = setting(
        3_600_000,
        "Maximum time between two metadata snapshots while the metadata changes; 0 means no limit.",
        name="metadata.log.max.snapshot.interval.ms",
        limits=(0, LONG_MAX),
    )
    replica_lag_time_max_ms: int = setting(
        10_000,
        "How long a follower may lag behind before it is removed from the ISR. (Kafka's default is 30000.)",
        limits=(1, LONG_MAX),
    )
    replica_fetch_max_bytes: int = setting(
        1_048_576,
        "Maximum bytes per partition in a follower's fetch; the first batch is returned even if it is larger.",
        limits=(0, INT_MAX),
    )
    replica_fetch_response_max_bytes: int = setting(
        10_485_760, "Maximum bytes in the response to a follower's fetch, over all partitions.", limits=(0, INT_MAX)
    )
    replica_fetch_wait_max_ms: int = setting(
        500,
        "Maximum time that the leader delays its response to a follower's fetch while there are no new records.",
        limits=(0, INT_MAX),
    )
    replica_fetch_backoff_ms: int = setting(
        200, "Backoff of a follower after a failed fetch. (Kafka's default is 1000.)", limits=(0, INT_MAX)
    )
    leader_replication_throttled_rate: int = setting(
        LONG_MAX,
        "Maximum bytes per second that this broker sends to throttled replicas that are catching up.",
        limits=(0, LONG_MAX),
        dynamic=True,
    )
    follower_replication_throttled_rate: int = setting(
        LONG_MAX,
        "Maximum bytes per second that this broker fetches for throttled replicas that are catching up.",
        limits=(0, LONG_MAX),
        dynamic=True,
    )
    replica_selector_class: str = setting(
        "",
        "Set it to RackAwareReplicaSelector (or Kafka's full class name) to direct consumers with a client.rack to a "
        "replica in that rack; if empty, consumers fetch from leaders.",
        check=lambda name: (
            None
            if name.rpartition(".")[2] in ("", "RackAwareReplicaSelector", "LeaderSelector")
            else "No such replica selector"
        ),
    )
    num_partitions: int = setting(1, "Default number of partitions of a new topic.", limits=(1, INT_MAX))
    default_replication_factor: int = setting(1, "Default replication factor of a new topic.", limits=(1, INT_MAX))
    auto_create_topics_enable: bool = setting(
        True, "Create a topic when a client that allows it first requests its metadata."
    )
    delete_topic_enable: bool = setting(True, "Allow clients to delete topics.")
    socket_request_max_bytes: int = setting(
        104_857_600,
        "Maximum size of a request; a connection that announces a larger one is closed.",
        limits=(1, INT_MAX),
    )
    queued_max_request_bytes: int = setting(
        268_435_456,
        "Maximum bytes of requests in progress over all connections. Above it, the broker stops reading from "
        "connections that have requests in progress or send large ones. A dedicated inter-broker listener has a "
        "separate limit of the same size. (Kafka has no limit by default.)",
        limits=(1, LONG_MAX),
    )
    max_connections: int = setting(
        10_000,
        "Maximum number of open connections; further ones are closed at once. Connections to a dedicated inter-broker "
        "listener are counted separately. (Kafka has no limit by default.)",
        limits=(1, INT_MAX),
        dynamic=True,
    )
    max_connections_per_ip: int = setting(
        5_000,
        "Maximum number of open connections from one IP address. (Kafka has no limit by default.)",
        limits=(1, INT_MAX),
        dynamic=True,
    )
    connections_max_idle_ms: int = setting(
        600_000, "How long a connection may be idle before it is closed.", limits=(1, LONG_MAX)
    )
    fetch_max_bytes: int = setting(
        57_671_680,
        "Maximum bytes of records in one fetch response, regardless of the client's limit.",
        limits=(1024, INT_MAX),
    )
    max_incremental_fetch_session_cache_slots: int = setting(
        1000,
        "Maximum number of cached fetch sessions; clients without a session send and receive all partitions in every "
        "fetch.",
        limits=(0, INT_MAX),
    )
    group_min_session_timeout_ms: int = setting(
        6_000,
        "Minimum session timeout of a group member. A short timeout detects failed members sooner and needs more "
        "frequent heartbeats.",
        limits=(0, INT_MAX),
    )
    group_max_session_timeout_ms: int = setting(
        1_800_000,
        "Maximum session timeout of a group member. A long timeout allows fewer heartbeats and leaves the partitions "
        "of a failed member unread for longer.",
        limits=(0, INT_MAX),
    )
    group_initial_rebalance_delay_ms: int = setting(
        3_000,
        "How long the first rebalance of an empty group waits for more members, so that a group whose members start "
        "together rebalances only once. 0 lets a single consumer start at once.",
        limits=(0, INT_MAX),
    )
    group_max_size: int = setting(INT_MAX, "Maximum number of members of a group.", limits=(1, INT_MAX))
    offset_metadata_max_bytes: int = setting(
        4_096, "Maximum length of the metadata string of a committed offset.", limits=(0, INT_MAX)
    )
    offsets_retention_minutes: int = setting(
        10_080,
        "How long committed offsets are kept after the last member has left the group. For consumers without a group "
        "membership, and for topics that the group no longer subscribes to, the time starts at the last commit.",
        limits=(1, INT_MAX),
    )
    offsets_retention_check_interval_ms: int = setting(
        600_000, "How often groups are checked for expired offsets.", limits=(1, LONG_MAX)
    )
    offsets_commit_timeout_ms: int = setting(
        5_000,
        "How long a group change may take to be committed before the coordinator returns a retriable error.",
        limits=(1, INT_MAX),
    )
    offsets_topic_num_partitions: int = setting(
        50, "Number of partitions of __consumer_offsets. Only used when the topic is created.", limits=(1, INT_MAX)
    )
    offsets_topic_replication_factor: int = setting(
        1,
        "Replication factor of __consumer_offsets when it is created. (Kafka's default is 3, with which groups cannot "
        "work on a single node.)",
        limits=(1, INT_MAX),
    )
    offsets_topic_segment_bytes: int = setting(
        104_857_600,
        "Segment size of __consumer_offsets when it is created. Only closed segments are compacted, so smaller "
        "segments make groups load faster.",
        limits=(1024, INT_MAX),
    )
    offsets_load_buffer_size: int = setting(
        5_242_880, "Bytes of __consumer_offsets that are read at a time when groups are loaded.", limits=(1, INT_MAX)
    )
    transaction_max_timeout_ms: int = setting(
        900_000,
        "Maximum transaction timeout that a client may request. An open transaction delays consumers that read only "
        "committed records.",
        limits=(1, INT_MAX),
    )
    transactional_id_expiration_ms: int = setting(
        604_800_000,
        "How long a transactional id is kept without a transaction. A producer that is idle for longer must start "
        "again.",
        limits=(1, INT_MAX),
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, "How often transactional ids are checked for expiration.", limits=(1, INT_MAX)
    )
    transaction_state_log_num_partitions: int = setting(
        50, "Number of partitions of __transaction_state. Only used when the topic is created.", limits=(1, INT_MAX)
    )
    transaction_state_log_replication_factor: int = setting(
        1,
        "Replication factor of __transaction_state when it is created. (Kafka's default is 3, with which transactions "
        "cannot work on a single node.)",
        limits=(1, INT_MAX),
    )
    transaction_state_log_min_isr: int = setting(
        2,
        "min.insync.replicas of __transaction_state when it is created, limited to its replication factor.",
        limits=(1, INT_MAX),
    )
    transaction_state_log_segment_bytes: int = setting(
        104_857_600,
        "Segment size of __transaction_state when it is created. Only closed segments are compacted, so smaller "
        "segments make transactions load faster.",
        limits=(1024, INT_MAX),
    )
    transaction_state_log_load_buffer_size: int = setting(
        5_242_880,
        "Bytes of __transaction_state that are read at a time when transactions are loaded.",
        limits=(1, INT_MAX),
    )
    producer_id_expiration_ms: int = setting(
        86_400_000, "How long the state of an inactive idempotent producer is kept.", limits=(1, INT_MAX)
    )
    log_retention_check_interval_ms: int = setting(
        300_000, "How often logs are checked for segments to delete.", limits=(1, LONG_MAX)
    )
    log_cleaner_enable: bool = setting(
        True, "Compact topics whose cleanup.policy includes `compact`. If it is off, they grow without limit."
    )
    log_cleaner_backoff_ms: int = setting(
        15_000, "How long the log cleaner pauses if no log needs compaction.", limits=(1, LONG_MAX), dynamic=True
    )
    postgres_schema: str = setting(
        "moldau",
        "Schema of the Postgres database in which the node keeps its tables; each node needs its own.",
        values="a name",
        check=check_schema,
    )
    postgres_password: str = setting(
        "",
        "Password of the Postgres user; if empty, the one in the URL of store, in PGPASSWORD or in ~/.pgpass.",
        is_sensitive=True,
    )
    postgres_outbox_schema: str = setting(
        "",
        "Schema of an outbox in the database of store, which this node relays; empty to relay none.",
        values="a name",
    )
    http_port: int = setting(
        -1,
        "Port of the HTTP server: health, and the HTTP API. -1 turns it off; 0 picks a free port.",
        limits=(-1, 65_535),
    )
    http_host: str = setting(
        "127.0.0.1",
        "Address that the HTTP server listens on. The default accepts connections from this machine only.",
        check=lambda host: None if host else "Value must not be empty",
    )
    http_request_max_bytes: int = setting(
        16_777_216, "Maximum size of the body of an HTTP request; a larger one gets status 413.", limits=(1, INT_MAX)
    )
    cluster_secret: str = setting(
        "",
        "Secret that HTTP requests to /kraft must have in the header X-Cluster-Secret; if empty, they are rejected.",
        is_sensitive=True,
    )
    http_kraft_open: bool = setting(
        False, "Accept HTTP requests to /kraft without a secret. For tests only: they can depose the quorum leader."
    )
    lag_sample_interval_ms: int = setting(
        10_000,
        "How often a coordinator samples the lag of its groups, while metrics or lag are read. Rates and states of "
        "groups come from the last ten samples.",
        limits=(100, INT_MAX),
        dynamic=True,
    )
    metrics_topic_enable: bool = setting(
        False,
        "Write the lag of groups and the sizes of partitions to the topic moldau.metrics, once per "
        "lag.sample.interval.ms. The topic is created if needed.",
        dynamic=True,
    )
    log_format: str = setting(
        "text", "Format of log lines: `text` for people, `json` for machines.", choices=("text", "json")
    )
    log_level: str = setting(
        "info", "Minimum level of the log lines that are written.", choices=("debug", "info", "warning", "error")
    )
    event_loop: str = setting(
        "auto",
        "Event loop implementation; `auto` uses uvloop if it is installed.",
        choices=("auto", "uvloop", "asyncio"),
    )
    topic_defaults: TopicSettings = field(default_factory=TopicSettings)
    explicitly_set: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    """Names of settings that a flag, an environment variable or the config file sets, even to the default value."""

    def __post_init__(self) -> None:
        # Settings built in Python are checked too, because a node must not expose a listener by mistake.
        check_listeners(self.listeners, self.advertised)
        parse_voters(self.quorum_voters)
        url, password = split_password(self.store)
        if password is not None:
            # Wherever the setting `store` is shown, it has no password.
            object.__setattr__(self, "store", url)
            object.__setattr__(self, "postgres_password", password)

    def check_conflicts(self) -> None:
        """Raises InvalidConfigError if two settings contradict each other."""
        request_bytes_max = self.socket_request_max_bytes
        if self.queued_max_request_bytes < request_bytes_max:
            raise InvalidConfigError(
                f"queued.max.request.bytes ({self.queued_max_request_bytes}) is less than "
                f"socket.request.max.bytes ({request_bytes_max}): the largest request would never be read"
            )
        if self.broker_heartbeat_interval_ms * 2 > self.broker_session_timeout_ms:
            raise InvalidConfigError(
                f"broker.session.timeout.ms ({self.broker_session_timeout_ms}) is less than twice "
                f"broker.heartbeat.interval.ms ({self.broker_heartbeat_interval_ms}): one late heartbeat "
                f"would fence a broker"
            )
        if self.inter_broker_listener not in [listener.name for listener in self.listeners]:
            raise InvalidConfigError(f"inter.broker.listener.name: listen has no listener {self.inter_broker_listener}")
        if self.group_min_session_timeout_ms > self.group_max_session_timeout_ms:
            raise InvalidConfigError(
                f"group.min.session.timeout.ms ({self.group_min_session_timeout_ms}) is greater than "
                f"group.max.session.timeout.ms ({self.group_max_session_timeout_ms}): no member could join"
            )
        if self.postgres_outbox_schema and not self.uses_postgres:
            raise InvalidConfigError(
                "postgres.outbox.schema: a node relays an outbox in the database of its store only, and its store is "
                f"{self.store}: run `moldau outbox relay` instead"
            )
        self.topic_defaults.check_conflicts()

    @property
    def log_dir(self) -> str:
        """The name of the log directory in responses."""
        if self.uses_postgres:
            return f"{self.store}#{self.postgres_schema}"
        return self.data_dir if self.store == "files" else self.store

    @property
    def uses_postgres(self) -> bool:
        return is_postgres_url(self.store)

    @property
    def voters(self) -> tuple[VoterAddress, ...]:
        """The voters of a new cluster; empty if this node is the only voter."""
        return parse_voters(self.quorum_voters)

    @property
    def inter_broker_listener(self) -> str:
        return self.inter_broker_listener_name.upper() or self.listeners[0].name

    @property
    def listeners(self) -> tuple[ListenerEndpoint, ...]:
        return _cached_listeners(self.listen, "listen")

    @property
    def advertised(self) -> tuple[ListenerEndpoint, ...]:
        return _cached_listeners(self.advertised_listeners, "advertised.listeners")


@cache
def broker_definitions() -> Mapping[str, SettingDefinition]:
    """Returns all broker settings by name, in the order of the documentation."""
    definitions = []
    section = ""
    for name, definition in setting_definitions(BrokerSettings).items():
        section = SECTION_STARTS.get(name, section)
        definitions.append(dataclasses.replace(definition, section=section))
    definitions += [
        _broker_wide_definition(definition, definition.broker_name)
        for definition in setting_definitions(TopicSettings).values()
        if definition.broker_name is not None
    ]
    definitions.sort(key=lambda each: SECTIONS.index(each.section))
    return MappingProxyType({each.name: each for each in definitions})


@cache
def broker_aliases() -> Mapping[str, tuple[SettingDefinition, Alias]]:
    """Returns the aliases of broker settings by name, each with the definition of its setting."""
    definitions = broker_definitions().values()
    return MappingProxyType({alias.name: (each, alias) for each in definitions for alias in each.aliases})


def get_value(settings: BrokerSettings, name: str) -> Any:
    definition = broker_definitions()[name]
    return getattr(settings.topic_defaults if definition.is_topic_default else settings, definition.attribute)


def with_values(settings: BrokerSettings, values: Mapping[str, Any], explicitly_set: frozenset[str]) -> BrokerSettings:
    """Returns a copy of `settings` with some values replaced."""
    broker_values: dict[str, Any] = {}
    topic_values: dict[str, Any] = {}
    for name, value in values.items():
        definition = broker_definitions()[name]
        (topic_values if definition.is_topic_default else broker_values)[definition.attribute] = value
    topic_defaults = dataclasses.replace(settings.topic_defaults, **topic_values)
    return dataclasses.replace(settings, **broker_values, topic_defaults=topic_defaults, explicitly_set=explicitly_set)


def _broker_wide_definition(definition: SettingDefinition, broker_name: str) -> SettingDefinition:
    """Returns the broker setting that is the default of a topic setting."""
    name = definition.name
    return dataclasses.replace(
        definition,
        name=broker_name,
        broker_name=None,
        is_topic_default=True,
        doc=definition.doc if broker_name == name else f"Default of {name}. {definition.doc}",
        dynamic=True,
        section=definition.section or TOPIC_DEFAULTS,
    )
