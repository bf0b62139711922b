"""Options of Spark data sources: case-insensitive names, typed values, and errors that name the option."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from moldau.client.security.config import PROPERTIES
from moldau.settings.option_parser import (
    OptionValueError,
    did_you_mean,
    parse_boolean,
    parse_choice,
    parse_duration,
    parse_integer,
    suggest_names,
)
from moldau.spark.errors import OptionError

T = TypeVar("T")

PREFIX = "kafka."
SECURITY = ("security.", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.")
"""Prefixes of the settings that `moldau.client.security.config` parses."""

COMMON = """
    bootstrap.servers client.dns.lookup client.id config.providers connections.max.idle.ms enable.metrics.push
    interceptor.classes metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy
    metric.reporters metrics.num.samples metrics.recording.level metrics.sample.window.ms receive.buffer.bytes
    reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms retries retry.backoff.max.ms retry.backoff.ms
    send.buffer.bytes socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms
    """
CONSUMER = """
    allow.auto.create.topics auto.commit.interval.ms auto.offset.reset check.crcs client.rack default.api.timeout.ms
    enable.auto.commit exclude.internal.topics fetch.max.bytes fetch.max.wait.ms fetch.min.bytes group.id
    group.instance.id group.protocol group.remote.assignor heartbeat.interval.ms isolation.level key.deserializer
    max.partition.fetch.bytes max.poll.interval.ms max.poll.records partition.assignment.strategy session.timeout.ms
    value.deserializer
    """
PRODUCER = """
    acks batch.size buffer.memory compression.gzip.level compression.lz4.level compression.type compression.zstd.level
    delivery.timeout.ms enable.idempotence key.serializer linger.ms max.block.ms max.in.flight.requests.per.connection
    max.request.size metadata.max.idle.ms partitioner.adaptive.partitioning.enable partitioner.availability.timeout.ms
    partitioner.class partitioner.ignore.keys transaction.timeout.ms transaction.two.phase.commit.enable
    transactional.id value.serializer
    """
NAMES = frozenset((COMMON + CONSUMER + PRODUCER).split())
"""The settings of Kafka's clients. Some have no effect here, but queries for Spark's connector may set them."""


class OptionReader:
    """Typed access to options. Error messages contain `prefix` before the option's name."""

    def __init__(self, values: Mapping[str, str], prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def items(self) -> Iterable[tuple[str, str]]:
        return self._values.items()

    def text(self, name: str, default: str) -> str:
        return self._values.get(name, default)

    def boolean(self, name: str, default: bool) -> bool:
        return self._parse(name, default, parse_boolean)

    def integer(self, name: str, low: int, default: int) -> int:
        return self._parse(name, default, lambda text: parse_integer(text, low))

    def optional_integer(self, name: str, low: int) -> int | None:
        return self.integer(name, low, low) if name in self else None

    def integers(self, arguments: Mapping[str, tuple[str, int]]) -> dict[str, int]:
        """Returns the values of those options in `arguments` that are set. `arguments` maps an option to its key in the
        result and its lowest valid value."""
        return {name: self.integer(option, low, low) for option, (name, low) in arguments.items() if option in self}

    def duration_ms(self, name: str, default: int) -> int:
        return self._parse(name, default, lambda text: parse_duration(text, "ms").milliseconds)

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        return self._parse(name, default, lambda text: parse_choice(text, choices))

    def _parse(self, name: str, default: T, parse: Callable[[str], T]) -> T:
        text = self._values.get(name)
        if text is None:
            return default
        try:
            return parse(text)
        except OptionValueError as error:
            raise OptionError(f"{self._prefix}{name} must be {error}, not {text!r}") from None


def known_options(
    options: Mapping[str, str],
    names: Iterable[str],
    *,
    prefixes: tuple[str, ...],
    ignored: tuple[str, ...] = (),
    misplaced: Mapping[str, str] | None = None,
    unknown: str,
    suggested: tuple[str, ...] = (),
) -> OptionReader:
    """Returns the options by their documented names. Raises OptionError for an unknown name.

    Options whose lower-case name is in `ignored` or starts with one of `prefixes` are omitted. `misplaced` maps
    lower-case names to an error message. For other unknown names, the message starts with `unknown` and suggests a
    similar name from `names` or `suggested`.
    """
    documented = {name.lower(): name for name in names}
    found = {}
    for name, value in options.items():
        lowered = name.lower()
        if lowered in ignored or lowered.startswith(prefixes):
            continue
        if misplaced and lowered in misplaced:
            raise OptionError(misplaced[lowered])
        if lowered not in documented:
            raise OptionError(f"{unknown} {name!r}{suggest_names(name, (*documented.values(), *suggested))}")
        found[documented[lowered]] = value
    return OptionReader(found)


def kafka_settings(options: Mapping[str, str], refused: Mapping[str, str] | None = None) -> OptionReader:
    """Returns the `kafka.*` options without the prefix. Raises OptionError for unknown names and those in `refused`."""
    found = {}
    for option, value in options.items():
        if not option.lower().startswith(PREFIX):
            continue
        name = option.lower().removeprefix(PREFIX)
        if name not in NAMES and not name.startswith(SECURITY):
            known = sorted(PREFIX + each for each in (*NAMES, *PROPERTIES))
            raise OptionError(f"Kafka has no setting {name!r}, given as {option}{did_you_mean(PREFIX + name, known)}")
        found[name] = value
    for name, reason in (refused or {}).items():
        if name in found:
            raise OptionError(f"{PREFIX}{name} cannot be set: {reason}")
    return OptionReader(found, PREFIX)
