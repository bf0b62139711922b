"""The options of `format("moldau")` for writing. They have the names and rules of Spark's Kafka connector. No I/O.

`kafka.*` options are settings of Kafka's producer. Settings that tune a Java client have no effect. `linger.ms` has no
effect either, because rows already arrive in batches.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moldau.records.compression import NAMES as COMPRESSIONS
from moldau.spark.errors import OptionError
from moldau.spark.options import PREFIX, OptionReader, kafka_settings, known_options
from moldau.spark.source.options import STRATEGIES, parse_connection

NAMES = ("topic", "includeHeaders")
SPARK_OPTIONS = ("checkpointlocation", "queryname")
"""Options that Spark itself adds."""

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
"""Kafka's settings, each with the argument of `Producer` and the lowest valid value."""
_DEFAULTS = {"batch_size": 512 * 1024, "buffer_memory": 32 * 1024 * 1024, "max_request_size": 1024 * 1024}
"""Defaults for larger batches than a normal producer has, because a task has all its rows available at once."""
_MISPLACED_OPTIONS = {
    name.lower(): f'{name} is for reading; name the topic to write with .option("topic", …) or a column `topic`'
    for name in STRATEGIES
}
_REFUSED_SETTINGS = {
    "transactional.id": "transactions are not supported; delivery is at least once, so leave it out",
    "key.serializer": "keys are bytes or strings; cast or encode the column `key` in the query",
    "value.serializer": "values are bytes or strings; cast or encode the column `value` in the query",
    "interceptor.classes": "no Java producer is used",
    "partitioner.class": "Kafka's default partitioner is used; to choose partitions add a column `partition`",
}


@dataclass(frozen=True)
class TopicSinkOptions:
    connection: Mapping[str, Any]
    """The arguments of `Cluster`."""
    producer: Mapping[str, Any]
    """The arguments of `Producer`."""
    topic: str | None = None
    """The topic of all rows, which overrides the column `topic`; None to use the column."""
    includes_headers: bool = True

    @property
    def bootstrap(self) -> str:
        return str(self.connection["bootstrap"])


def parse_topic_options(options: Mapping[str, str]) -> TopicSinkOptions:
    """Returns the parsed options. Raises OptionError with the option's name and the values that it accepts."""
    own = known_options(
        options,
        NAMES,
        prefixes=(PREFIX, "__"),
        ignored=("path", *SPARK_OPTIONS),
        misplaced=_MISPLACED_OPTIONS,
        unknown="there is no write option",
        suggested=("kafka.bootstrap.servers",),
    )
    kafka = kafka_settings(options, _REFUSED_SETTINGS)
    topic = own.text("topic", "") if "topic" in own else None
    if topic is not None and (problem := topic_name_problem(topic)):
        raise OptionError(f"the option topic: {problem}")
    return TopicSinkOptions(
        connection=parse_connection(options),
        producer=_producer(kafka),
        topic=topic,
        includes_headers=own.boolean("includeHeaders", True),
    )


def topic_name_problem(name: str) -> str | None:
    """Returns an error message for a name that breaks Kafka's rule for topic names, or None."""
    if re.fullmatch(r"[a-zA-Z0-9._-]{1,249}", name) and name not in (".", ".."):
        return None
    return f"{name!r} is not a topic name: use 1 to 249 letters, digits, dots, underscores and hyphens"


def _producer(kafka: OptionReader) -> dict[str, Any]:
    settings: dict[str, Any] = dict(_DEFAULTS)
    settings |= kafka.integers(_NUMBER_SETTINGS)
    # In Kafka, a batch size of 0 means one record per batch. A size of 1 byte has the same effect here.
    settings["batch_size"] = max(1, settings["batch_size"])
    settings["compression"] = kafka.choice("compression.type", COMPRESSIONS, "none")
    settings["acks"] = _ACKS[kafka.choice("acks", _ACKS, "all")]
    settings["idempotent"] = _is_idempotent(kafka, settings)
    return settings


def _is_idempotent(kafka: OptionReader, settings: Mapping[str, Any]) -> bool:
    """Returns whether the producer is idempotent. As in Kafka, the default is True if the other settings allow it."""
    is_allowed = bool(settings["acks"] == -1 and settings.get("max_in_flight", 5) <= 5)
    is_wanted = kafka.boolean("enable.idempotence", is_allowed)
    if is_wanted and not is_allowed:
        raise OptionError(
            "kafka.enable.idempotence needs kafka.acks=all and at most 5 "
            "kafka.max.in.flight.requests.per.connection: change these, or leave it out"
        )
    return is_wanted
