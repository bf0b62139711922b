"""The options of `format("moldau")` for reading. They have the names and rules of Spark's Kafka connector.

All options are checked, also those that a query does not use. No I/O.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from moldau.client.consumer.offset_lookup import EARLIEST, LATEST
from moldau.client.record import TopicPartition
from moldau.settings.option_parser import OptionValueError, parse_integer
from moldau.spark.errors import OptionError
from moldau.spark.options import PREFIX, SECURITY, OptionReader, kafka_settings, known_options
from moldau.spark.source.offset_ranges import TriggerLimits
from moldau.spark.source.offsets import (
    EarliestOrLatest,
    GlobalTimestamp,
    OffsetRangeLimit,
    check_order,
    check_time,
    parse_assignment,
    parse_offset_limit,
    parse_times,
)

STRATEGIES = ("subscribe", "subscribePattern", "assign")
ENDINGS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
OTHERS = """
    startingTimestamp startingOffsetsByTimestamp startingOffsets startingOffsetsByTimestampStrategy failOnDataLoss
    includeHeaders minPartitions maxRecordsPerPartition maxOffsetsPerTrigger minOffsetsPerTrigger maxTriggerDelay
    groupIdPrefix publishOffsets fetchOffset.numRetries fetchOffset.retryIntervalMs kafkaConsumer.pollTimeoutMs
    replica
    """
NAMES = (*STRATEGIES, *ENDINGS, *OTHERS.split())
OWN_TOPICS = ("moldau.metrics", "moldau.pipelines")
"""The topics in which Moldau reports on itself. Patterns match them only if they start with `moldau`, so that `.*`
reads the topics of users."""
GROUP_ID_PREFIX = "spark-moldau-source"

READ_TIMEOUT_MS = 60_000
"""The time after which a task fails if its partition returns no records."""

_REFUSED_SETTINGS = {
    "auto.offset.reset": "startingOffsets sets where a new query starts; a restarted one resumes from its checkpoint",
    "key.deserializer": "keys are bytes; cast or decode the column `key` in the query",
    "value.deserializer": "values are bytes; cast or decode the column `value` in the query",
    "enable.auto.commit": "a query keeps its offsets in its checkpoint; publishOffsets commits them to its group",
    "interceptor.classes": "no Java consumer is used",
}

_CONNECTION_NUMBERS = {
    "request.timeout.ms": ("request_timeout_ms", 1),
    "retry.backoff.ms": ("retry_backoff_ms", 0),
    "retry.backoff.max.ms": ("retry_backoff_max_ms", 0),
    "metadata.max.age.ms": ("metadata_max_age_ms", 1),
}
"""Kafka's settings, each with the argument of `Cluster` and the lowest valid value."""

_MISPLACED_OPTIONS = {
    "path": 'load() takes no path here; name the topics with .option("subscribe", "orders")',
    "topic": 'topic is for writing; name the topics to read with .option("subscribe", "orders")',
}


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """The partitions to read; exactly one of the three fields is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()

    @property
    def option(self) -> str:
        if self.pattern is not None:
            return "subscribePattern"
        return "subscribe" if self.topics else "assign"

    def has(self, partition: TopicPartition) -> bool:
        if self.pattern is not None:
            is_hidden = partition.topic in OWN_TOPICS and not self.pattern.startswith("moldau")
            return not is_hidden and re.fullmatch(self.pattern, partition.topic) is not None
        return partition.topic in self.topics if self.topics else partition in self.partitions


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """Fetch parameters of the tasks."""

    isolation_level: int = 0
    partition_max_bytes: int = 4 * 1024 * 1024
    max_bytes: int = 16 * 1024 * 1024
    timeout_ms: int = READ_TIMEOUT_MS
    replica: int | None = None
    """The id of the broker whose replicas are read; None to read from leaders."""


@dataclass(frozen=True)
class SourceOptions:
    connection: Mapping[str, Any]
    """The arguments of `Cluster`."""
    subscription: TopicSubscription
    starting: OffsetRangeLimit
    ending: OffsetRangeLimit
    """The end of a batch query. A stream ignores this value."""
    starts_at_latest_without_match: bool = False
    """If a partition has no record at or after the starting time: True to start at its end, False to fail."""
    fail_on_data_loss: bool = True
    include_headers: bool = False
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    limits: TriggerLimits = field(default_factory=TriggerLimits)
    group_id: str | None = None
    group_id_prefix: str = GROUP_ID_PREFIX
    publishes_offsets: bool = True
    offset_attempts: int = 3
    offset_retry_ms: int = 1_000
    fetch_options: FetchOptions = field(default_factory=FetchOptions)

    @property
    def bootstrap(self) -> str:
        return str(self.connection["bootstrap"])


def parse_source_options(options: Mapping[str, str], *, is_stream: bool) -> SourceOptions:
    """Returns the parsed options. Raises OptionError with the option's name and the values that it accepts."""
    own = known_options(
        options,
        NAMES,
        prefixes=(PREFIX,),
        misplaced=_MISPLACED_OPTIONS,
        unknown="there is no option",
        suggested=("kafka.bootstrap.servers",),
    )
    kafka = kafka_settings(options, _REFUSED_SETTINGS)
    if is_stream:
        for name in ENDINGS:
            if name in own:
                raise OptionError(f"{name} is for batch queries: a stream has no end. Use it with spark.read")
    limits = _trigger_limits(own)
    if is_stream:
        starting = _parse_limit(own, "starting", EarliestOrLatest(LATEST), None)
    else:
        starting = _parse_limit(own, "starting", EarliestOrLatest(EARLIEST), LATEST)
    ending = _parse_limit(own, "ending", EarliestOrLatest(LATEST), EARLIEST)
    check_order(starting, ending)
    group_id = kafka.text("group.id", "") if "group.id" in kafka else None
    if group_id is not None and not group_id.strip():
        raise OptionError("kafka.group.id is empty: name a group, or leave the option out to get a generated one")
    without_match = own.choice("startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return SourceOptions(
        connection=parse_connection(options),
        subscription=_subscription(own),
        starting=starting,
        ending=ending,
        starts_at_latest_without_match=without_match == "latest",
        fail_on_data_loss=own.boolean("failOnDataLoss", True),
        include_headers=own.boolean("includeHeaders", False),
        partitions_min=own.optional_integer("minPartitions", 1),
        records_per_partition_max=own.optional_integer("maxRecordsPerPartition", 1),
        limits=limits,
        group_id=group_id,
        group_id_prefix=own.text("groupIdPrefix", GROUP_ID_PREFIX),
        publishes_offsets=own.boolean("publishOffsets", True),
        offset_attempts=own.integer("fetchOffset.numRetries", 1, 3),
        offset_retry_ms=own.integer("fetchOffset.retryIntervalMs", 0, 1_000),
        fetch_options=_fetch_options(own, kafka),
    )


def parse_connection(options: Mapping[str, str]) -> Mapping[str, Any]:
    """Returns the arguments of `Cluster` for the `kafka.*` options. All values are hashable. Raises OptionError."""
    kafka = kafka_settings(options)
    bootstrap = kafka.text("bootstrap.servers", "").strip()
    if not bootstrap:
        raise OptionError(
            "kafka.bootstrap.servers is missing: name the brokers, as "
            '.option("kafka.bootstrap.servers", "127.0.0.1:9092")'
        )
    settings: dict[str, Any] = {"bootstrap": bootstrap, "client_id": kafka.text("client.id", "moldau-spark")}
    settings |= kafka.integers(_CONNECTION_NUMBERS)
    security = {name: value for name, value in kafka.items() if name.startswith(SECURITY)}
    if security:
        from moldau.client.security.config import parse_security

        try:
            settings["security"] = parse_security(security)
        except ValueError as error:
            raise OptionError(f"the security options kafka.*: {error}") from None
    return settings


def check_read_options(options: Mapping[str, str]) -> None:
    """Checks the options at load(), when it is not yet known whether the query is a batch or a stream.

    Does nothing if the options name no topics to read, because they may be the options of a write.
    """
    names = {name.lower() for name in options}
    if any(name.lower() in names for name in STRATEGIES):
        is_batch = any(name.lower() in names for name in ENDINGS)
        parse_source_options(options, is_stream=not is_batch)


def includes_headers(options: Mapping[str, str]) -> bool:
    text = next((value for name, value in options.items() if name.lower() == "includeheaders"), "false")
    return OptionReader({"includeHeaders": text}).boolean("includeHeaders", False)


def _subscription(own: OptionReader) -> TopicSubscription:
    chosen = [name for name in STRATEGIES if name in own]
    if not chosen:
        raise OptionError("no topics are named: set subscribe, subscribePattern or assign")
    if len(chosen) > 1:
        raise OptionError(f"only one of subscribe, subscribePattern and assign can be set, not {' and '.join(chosen)}")
    text = own.text(chosen[0], "").strip()
    if chosen[0] == "assign":
        return TopicSubscription(partitions=tuple(parse_assignment(text)))
    if chosen[0] == "subscribe":
        topics = tuple(sorted({each.strip() for each in text.split(",")} - {""}))
        if not topics:
            raise OptionError(f"subscribe must be a comma-separated list of topics, not {text!r}")
        return TopicSubscription(topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern: {text!r} is not a regular expression: {error}") from None
    if not text:
        raise OptionError("subscribePattern is empty: it must be a regular expression for whole topic names")
    return TopicSubscription(pattern=text)


def _parse_limit(own: OptionReader, side: str, default: OffsetRangeLimit, illegal: int | None) -> OffsetRangeLimit:
    """Parses the starting or the ending options. Returns the one with the highest precedence."""
    parsers: list[tuple[str, Callable[[str, str], OffsetRangeLimit]]] = [
        (f"{side}Timestamp", _parse_time),
        (f"{side}OffsetsByTimestamp", parse_times),
        (f"{side}Offsets", lambda option, text: parse_offset_limit(option, text, illegal=illegal)),
    ]
    # The order of the parsers is the precedence of the options.
    found = [parse(option, own.text(option, "")) for option, parse in parsers if option in own]
    return found[0] if found else default


def _parse_time(option: str, text: str) -> GlobalTimestamp:
    try:
        return GlobalTimestamp(check_time(option, parse_integer(text)))
    except OptionValueError:
        raise OptionError(f"{option} must be a time in milliseconds since 1970, not {text!r}") from None


def _trigger_limits(own: OptionReader) -> TriggerLimits:
    most = own.optional_integer("maxOffsetsPerTrigger", 1)
    least = own.optional_integer("minOffsetsPerTrigger", 1)
    if most is not None and least is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most})")
    return TriggerLimits(most, least, own.duration_ms("maxTriggerDelay", 15 * 60 * 1000))


def _fetch_options(own: OptionReader, kafka: OptionReader) -> FetchOptions:
    level = kafka.choice("isolation.level", ("read_uncommitted", "read_committed"), "read_uncommitted")
    defaults = FetchOptions()
    return FetchOptions(
        isolation_level=int(level == "read_committed"),
        partition_max_bytes=kafka.integer("max.partition.fetch.bytes", 1, defaults.partition_max_bytes),
        max_bytes=kafka.integer("fetch.max.bytes", 1, defaults.max_bytes),
        timeout_ms=own.integer("kafkaConsumer.pollTimeoutMs", 1, defaults.timeout_ms),
        replica=own.optional_integer("replica", 0),
    )
