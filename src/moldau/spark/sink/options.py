"""The options of `format("moldau")` for writing: those of Spark's Kafka connector, by the same names and rules. Pure.

`kafka.*` options are the settings of Kafka's producer. Those that tune what is not there (a Java client's buffers and
metrics) are taken and have no effect; `linger.ms` too, because rows come in batches already.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from moldau.records.compression import NAMES as COMPRESSIONS
from moldau.settings.values import did_you_mean
from moldau.spark.errors import OptionError
from moldau.spark.source.kafka_settings import PREFIX, kafka_settings
from moldau.spark.source.options import parse_connection, parse_flag, parse_number

NAMES = ("topic", "includeHeaders")
SPARK_OPTIONS = ("checkpointlocation", "queryname", "path")
"""Spark puts these among the options by itself."""

_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ACKS = {"all": -1, "-1": -1, "0": 0, "1": 1}
_NUMBER_SETTINGS = {
    "batch.size": ("batch_size", 0),
    "buffer.memory": ("buffer_memory", 1),
    "delivery.timeout.ms": ("delivery_timeout_ms", 1),
    "linger.ms": ("linger_ms", 0),
    "max.block.ms": ("max_block_ms", 0),
    "max.in.flight.requests.per.connection": ("max_in_flight", 1),
    "max.request.size": ("max_request_size", 1),
}
"""What `Producer` calls them, and their lowest values."""
_DEFAULTS = {
    "batch_size": 512 * 1024,
    "buffer_memory": 32 * 1024 * 1024,
    "compression": "none",
    "max_request_size": 1024 * 1024,
}
"""Batches larger than a producer's usual ones: the rows of a task come all at once, and need not wait for others."""
_REFUSED_SETTINGS = {
    "transactional.id": "transactions are not served yet; delivery is at least once, so leave it out",
    "key.serializer": "keys are bytes or strings; cast or encode the column `key` in the query",
    "value.serializer": "values are bytes or strings; cast or encode the column `value` in the query",
    "interceptor.classes": "there is no Java producer that could be intercepted",
    "partitioner.class": "records go where Kafka's own partitioner puts them; to decide it add a column `partition`",
}


@dataclass(frozen=True)
class TopicSinkOptions:
    connection: Mapping[str, Any]
    """The arguments of `Cluster`."""
    producer: Mapping[str, Any]
    """Those of `Producer`."""
    topic: str | None = None
    """For all rows, whatever a column says."""
    includes_headers: bool = True

    @property
    def bootstrap(self) -> str:
        return str(self.connection["bootstrap"])


def parse_topic_options(options: Mapping[str, str]) -> TopicSinkOptions:
    """Raises OptionError that names the option, and what to write instead."""
    given = _known_options(options)
    kafka = kafka_settings(options)
    for name, reason in _REFUSED_SETTINGS.items():
        if name in kafka:
            raise OptionError(f"{PREFIX}{name} cannot be set: {reason}")
    topic = given.get("topic")
    if topic is not None and not is_valid_topic_name(topic):
        raise OptionError(f"the option topic: {invalid_topic_name_text(topic)}")
    return TopicSinkOptions(
        connection=parse_connection(options),
        producer=_producer(kafka),
        topic=topic,
        includes_headers=parse_flag(given, "includeHeaders", True),
    )


def is_valid_topic_name(name: str) -> bool:
    """By the rule that all brokers keep."""
    return _TOPIC_NAME.fullmatch(name) is not None and name not in (".", "..")


def invalid_topic_name_text(name: str) -> str:
    return f"{name!r} is no topic's name, which is 1 to 249 letters, digits, dots, underscores and hyphens"


def known_names_hint(names: Iterable[str]) -> str:
    """Where no name is near: all of them."""
    return f"; there are {', '.join(names)}"


def _known_options(options: Mapping[str, str]) -> dict[str, str]:
    by_lower = {name.lower(): name for name in NAMES}
    found = {}
    for name, value in options.items():
        lowered = name.lower()
        if lowered.startswith((PREFIX, "__")) or lowered in SPARK_OPTIONS:
            continue
        if lowered in ("subscribe", "subscribepattern", "assign"):
            raise OptionError(
                f'{name} says what to read; name where to write by .option("topic", …) or a column `topic`'
            )
        if lowered not in by_lower:
            names = (*NAMES, "kafka.bootstrap.servers")
            raise OptionError(
                f"there is no option {name!r} for writing{did_you_mean(name, names) or known_names_hint(names)}"
            )
        found[by_lower[lowered]] = value
    return found


def _producer(kafka: Mapping[str, str]) -> dict[str, Any]:
    settings: dict[str, Any] = dict(_DEFAULTS)
    for name, (argument, low) in _NUMBER_SETTINGS.items():
        if name in kafka:
            settings[argument] = parse_number(PREFIX + name, kafka[name], low)
    # Kafka's 0 stands for a batch of every record.
    settings["batch_size"] = max(1, settings["batch_size"])
    if "compression.type" in kafka:
        compression = kafka["compression.type"].strip().lower()
        if compression not in COMPRESSIONS:
            raise OptionError(
                f"kafka.compression.type is one of {', '.join(COMPRESSIONS)}, not {kafka['compression.type']!r}"
            )
        settings["compression"] = compression
    acks = kafka.get("acks", "all").strip().lower()
    if acks not in _ACKS:
        raise OptionError(f"kafka.acks is all (the same as -1), 0 or 1, not {kafka['acks']!r}")
    settings["acks"] = _ACKS[acks]
    settings["idempotent"] = _is_idempotent(kafka, settings)
    return settings


def _is_idempotent(kafka: Mapping[str, str], settings: Mapping[str, Any]) -> bool:
    """As Kafka's producer: unless told so it is where the other settings allow it."""
    is_allowed = settings["acks"] == -1 and settings.get("max_in_flight", 5) <= 5
    if "enable.idempotence" not in kafka:
        return bool(is_allowed)
    name = PREFIX + "enable.idempotence"
    is_wanted = parse_flag({name: kafka["enable.idempotence"]}, name, True)
    if is_wanted and not is_allowed:
        raise OptionError(
            "kafka.enable.idempotence needs kafka.acks=all and at most 5 "
            "kafka.max.in.flight.requests.per.connection: change these, or leave it out"
        )
    return is_wanted
