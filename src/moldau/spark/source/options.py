"""The options of `format("moldau")` for reading: those of Spark's Kafka connector, by the same names and rules. Pure.

Names are case-insensitive, as everywhere in Spark. Whatever is given is checked, also what goes unused in a query.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from moldau.client.consumer.offset_lookup import EARLIEST, LATEST
from moldau.client.record import TopicPartition
from moldau.settings.values import did_you_mean
from moldau.spark.errors import OptionError
from moldau.spark.source.kafka_settings import PREFIX, SECURITY, kafka_settings
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

T = TypeVar("T")

STRATEGIES = ("subscribe", "subscribePattern", "assign")
ENDINGS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
NAMES = (
    *STRATEGIES,
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    *ENDINGS,
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "groupIdPrefix",
    "publishOffsets",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
)
_NAMES_BY_LOWER_CASE = {name.lower(): name for name in NAMES}

GROUP_ID_PREFIX = "spark-moldau-source"

READ_TIMEOUT_MS = 60_000
"""So long a task goes on trying when a partition brings nothing."""

_REFUSED_SETTINGS = {
    "auto.offset.reset": "startingOffsets says where a query begins, and a restarted one goes on where it stopped",
    "key.deserializer": "keys come as bytes; cast or decode the column `key` in the query",
    "value.deserializer": "values come as bytes; cast or decode the column `value` in the query",
    "enable.auto.commit": "the offsets of a query are in its checkpoint; publishOffsets shows them in its group",
    "interceptor.classes": "there is no Java consumer that could be intercepted",
}

_CONNECTION_SETTINGS: Mapping[str, tuple[str, str | None]] = {
    "client.id": ("client_id", None),
    "request.timeout.ms": ("request_timeout_ms", "1"),
    "retry.backoff.ms": ("retry_backoff_ms", "0"),
    "retry.backoff.max.ms": ("retry_backoff_max_ms", "0"),
    "metadata.max.age.ms": ("metadata_max_age_ms", "1"),
}
"""What `Cluster` calls them, and the lowest value of those that are numbers."""

_UNITS_MS = {
    "us": 0.001,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}


@dataclass(frozen=True, slots=True)
class Subscription:
    """Which partitions are read: exactly one of the three is there."""

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
            return re.fullmatch(self.pattern, partition.topic) is not None
        return partition.topic in self.topics if self.topics else partition in self.partitions


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """How tasks fetch."""

    isolation_level: int = 0
    partition_max_bytes: int = 4 * 1024 * 1024
    max_bytes: int = 16 * 1024 * 1024
    timeout_ms: int = READ_TIMEOUT_MS


@dataclass(frozen=True)
class SourceOptions:
    connection: Mapping[str, Any]
    """The arguments of `Cluster`."""
    subscription: Subscription
    starting: OffsetRangeLimit
    ending: OffsetRangeLimit
    """Of batches; a stream has no end."""
    starts_at_latest_without_match: bool = False
    """Where a partition has no record at or after a starting time: begin at its end, or fail."""
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
    """Raises OptionError that names the option, and what to write instead."""
    given = _known_options(options)
    kafka = kafka_settings(options)
    for name, reason in _REFUSED_SETTINGS.items():
        if name in kafka:
            raise OptionError(f"{PREFIX}{name} cannot be set: {reason}")
    if is_stream:
        for name in ENDINGS:
            if name in given:
                raise OptionError(
                    f"{name} makes no sense in a stream, which has no end; use it with spark.read"
                )
    limits = _limits(given)
    starting = _parse_limit(
        given, "starting", EarliestOrLatest(LATEST if is_stream else EARLIEST), None if is_stream else LATEST
    )
    ending = _parse_limit(given, "ending", EarliestOrLatest(LATEST), EARLIEST)
    check_order(starting, ending)
    return SourceOptions(
        connection=parse_connection(options),
        subscription=_subscription(given),
        starting=starting,
        ending=ending,
        starts_at_latest_without_match=_choice(
            given, "startingOffsetsByTimestampStrategy", ("error", "latest")
        )
        == "latest",
        fail_on_data_loss=parse_flag(given, "failOnDataLoss", True),
        include_headers=parse_flag(given, "includeHeaders", False),
        partitions_min=_number(given, "minPartitions", 1),
        records_per_partition_max=_number(given, "maxRecordsPerPartition", 1),
        limits=limits,
        group_id=_group_id(kafka),
        group_id_prefix=given.get("groupIdPrefix", GROUP_ID_PREFIX),
        publishes_offsets=parse_flag(given, "publishOffsets", True),
        offset_attempts=_default(_number(given, "fetchOffset.numRetries", 1), 3),
        offset_retry_ms=_default(_number(given, "fetchOffset.retryIntervalMs", 0), 1_000),
        fetch_options=_fetch_options(given, kafka),
    )


def parse_connection(options: Mapping[str, str]) -> Mapping[str, Any]:
    """The arguments of `Cluster` that `kafka.*` options give; all values are hashable. Raises OptionError."""
    kafka = kafka_settings(options)
    bootstrap = kafka.get("bootstrap.servers", "").strip()
    if not bootstrap:
        raise OptionError(
            "kafka.bootstrap.servers is missing: say where the brokers are, as "
            '.option("kafka.bootstrap.servers", "127.0.0.1:9092")'
        )
    settings: dict[str, Any] = {"bootstrap": bootstrap, "client_id": "moldau-spark"}
    for name, (argument, low) in _CONNECTION_SETTINGS.items():
        if name in kafka:
            text = kafka[name]
            settings[argument] = text if low is None else parse_number(PREFIX + name, text, int(low))
    secured = {name: value for name, value in kafka.items() if name.startswith(SECURITY)}
    if secured:
        from moldau.client.security.config import parse_security

        try:
            settings["security"] = parse_security(secured)
        except ValueError as error:
            raise OptionError(f"the security options kafka.*: {error}") from None
    return settings


def check_read_options(options: Mapping[str, str]) -> None:
    """What can be said before it is known whether this is a batch or a stream: so load() fails, and not the query."""
    given = _lower_names(options)
    is_batch = any(name.lower() in given for name in ENDINGS)
    parse_source_options(options, is_stream=not is_batch)


def is_read_query(options: Mapping[str, str]) -> bool:
    """Whether these options are of a read: writes do not say which partitions they mean."""
    return any(name.lower() in _lower_names(options) for name in STRATEGIES)


def includes_headers(options: Mapping[str, str]) -> bool:
    given = {name.lower(): value for name, value in options.items()}
    return parse_flag({"includeHeaders": given.get("includeheaders", "false")}, "includeHeaders", False)


def parse_flag(given: Mapping[str, str], name: str, default: bool) -> bool:
    text = given.get(name)
    if text is None:
        return default
    if text.strip().lower() not in ("true", "false"):
        raise OptionError(f"{name} is true or false, not {text!r}")
    return text.strip().lower() == "true"


def parse_number(name: str, text: str, low: int) -> int:
    if not re.fullmatch(r"[+-]?\d{1,19}", text.strip()) or int(text) < low:
        raise OptionError(f"{name} is a whole number, {low} or more, not {text!r}")
    return int(text)


def parse_duration_ms(name: str, text: str) -> int:
    """As Spark writes them: `15m`, `30s`, `500ms`; a number alone is in milliseconds."""
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or (found.group(2) or "ms") not in _UNITS_MS:
        raise OptionError(f"{name} is a time like 500ms, 30s, 15m or 1h, not {text!r}")
    return int(int(found.group(1)) * _UNITS_MS[found.group(2) or "ms"])


def _lower_names(options: Mapping[str, str]) -> set[str]:
    return {name.lower() for name in options}


def _known_options(options: Mapping[str, str]) -> dict[str, str]:
    """The options but kafka.*, by their names as they are documented."""
    found = {}
    for name, value in options.items():
        lowered = name.lower()
        if lowered.startswith(PREFIX):
            continue
        if lowered == "path":
            raise OptionError(
                'load() takes no path here; name what to read by .option("subscribe", "orders")'
            )
        if lowered == "topic":
            raise OptionError(
                'topic is where a query writes to; name what to read by .option("subscribe", "orders")'
            )
        if lowered not in _NAMES_BY_LOWER_CASE:
            names = {**_NAMES_BY_LOWER_CASE, "kafka.bootstrap.servers": "kafka.bootstrap.servers"}
            hint = did_you_mean(lowered, names)
            for near, documented in names.items():
                hint = hint.replace(f" {near}?", f" {documented}?")
            raise OptionError(f"there is no option {name!r}{hint}")
        found[_NAMES_BY_LOWER_CASE[lowered]] = value
    return found


def _subscription(given: Mapping[str, str]) -> Subscription:
    chosen = [name for name in STRATEGIES if name in given]
    if not chosen:
        raise OptionError("nothing says which topics to read: set subscribe, subscribePattern or assign")
    if len(chosen) > 1:
        raise OptionError(
            f"only one of subscribe, subscribePattern and assign can be set, not {' and '.join(chosen)}"
        )
    text = given[chosen[0]].strip()
    if chosen[0] == "assign":
        return Subscription(partitions=tuple(parse_assignment(text)))
    if chosen[0] == "subscribe":
        topics = tuple(sorted({each.strip() for each in text.split(",")} - {""}))
        if not topics:
            raise OptionError(
                f"subscribe is a list of topics with commas between, not {given['subscribe']!r}"
            )
        return Subscription(topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern: {text!r} is no regular expression: {error}") from None
    if not text:
        raise OptionError(
            "subscribePattern is a regular expression that topics' whole names match, and it is empty"
        )
    return Subscription(pattern=text)


def _parse_limit(
    given: Mapping[str, str], side: str, default: OffsetRangeLimit, illegal: int | None
) -> OffsetRangeLimit:
    """What is most general goes first: one time for all, then times, then offsets."""
    places: list[tuple[str, Callable[[str, str], OffsetRangeLimit]]] = [
        (f"{side}Timestamp", _parse_time),
        (f"{side}OffsetsByTimestamp", parse_times),
        (f"{side}Offsets", lambda option, text: parse_offset_limit(option, text, illegal=illegal)),
    ]
    found = [parse(option, given[option]) for option, parse in places if option in given]
    return found[0] if found else default


def _parse_time(option: str, text: str) -> GlobalTimestamp:
    if not re.fullmatch(r"-?\d{1,19}", text.strip()):
        raise OptionError(f"{option} is a time in milliseconds since 1970, not {text!r}")
    return GlobalTimestamp(check_time(option, int(text)))


def _limits(given: Mapping[str, str]) -> TriggerLimits:
    most = _number(given, "maxOffsetsPerTrigger", 1)
    least = _number(given, "minOffsetsPerTrigger", 1)
    if most is not None and least is not None and least > most:
        raise OptionError(f"minOffsetsPerTrigger ({least}) is higher than maxOffsetsPerTrigger ({most})")
    delay_ms = parse_duration_ms("maxTriggerDelay", given.get("maxTriggerDelay", "15m"))
    return TriggerLimits(most, least, delay_ms)


def _fetch_options(given: Mapping[str, str], kafka: Mapping[str, str]) -> FetchOptions:
    defaults = FetchOptions()
    level = kafka.get("isolation.level", "read_uncommitted").strip().lower()
    if level not in ("read_uncommitted", "read_committed"):
        raise OptionError(f"kafka.isolation.level is read_uncommitted or read_committed, not {level!r}")

    def size(name: str, default: int) -> int:
        return parse_number(PREFIX + name, kafka[name], 1) if name in kafka else default

    return FetchOptions(
        isolation_level=int(level == "read_committed"),
        partition_max_bytes=size("max.partition.fetch.bytes", defaults.partition_max_bytes),
        max_bytes=size("fetch.max.bytes", defaults.max_bytes),
        timeout_ms=_default(_number(given, "kafkaConsumer.pollTimeoutMs", 1), defaults.timeout_ms),
    )


def _group_id(kafka: Mapping[str, str]) -> str | None:
    group_id = kafka.get("group.id")
    if group_id is not None and not group_id.strip():
        raise OptionError("kafka.group.id is empty: name a group, or leave it out for one that is made up")
    return group_id


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    text = given.get(name, choices[0]).strip().lower()
    if text not in choices:
        raise OptionError(f"{name} is {' or '.join(choices)}, not {given[name]!r}")
    return text


def _number(given: Mapping[str, str], name: str, low: int) -> int | None:
    text = given.get(name)
    return None if text is None else parse_number(name, text, low)


def _default(value: T | None, default: T) -> T:
    return default if value is None else value
