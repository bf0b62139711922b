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

EXACTLY_ONCE, AT_LEAST_ONCE = DELIVERIES = ("exactly-once", "at-least-once")
NAMES = ("topic", "includeHeaders", "delivery", "appId", "batchId")
TRANSACTION_TIMEOUT_MS = 900_000
"""The longest timeout that brokers allow by default, because all tasks of a batch must end within it."""
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
    "transactional.id": "the sink chooses transactional ids; for transactions use the option delivery=exactly-once",
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
    is_stream: bool = False
    is_exactly_once: bool = False
    transaction_timeout_ms: int = TRANSACTION_TIMEOUT_MS
    app_id: str | None = None
    """Identifies the writer of numbered batches; None for the id of the streaming query."""
    batch_id: int | None = None
    """The number of a batch write in foreachBatch; None for streams, whose batches Spark numbers."""
    checkpoint_location: str | None = None
    """The checkpoint of a stream, if it is an option of the query."""

    @property
    def bootstrap(self) -> str:
        return str(self.connection["bootstrap"])


def parse_topic_options(options: Mapping[str, str], *, is_stream: bool = False) -> TopicSinkOptions:
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
    batch_id = own.optional_integer("batchId", 0)
    if batch_id is not None and is_stream:
        raise OptionError("batchId is for batch writes in foreachBatch: Spark numbers the batches of a stream")
    default = EXACTLY_ONCE if is_stream or batch_id is not None else AT_LEAST_ONCE
    is_exactly_once = own.choice("delivery", DELIVERIES, default) == EXACTLY_ONCE
    producer = _producer(kafka)
    if is_exactly_once and not producer["idempotent"]:
        raise OptionError(
            "delivery=exactly-once, the default of streams, needs an idempotent producer: leave out kafka.acks, "
            "kafka.enable.idempotence and kafka.max.in.flight.requests.per.connection, or set delivery=at-least-once"
        )
    return TopicSinkOptions(
        connection=parse_connection(options),
        producer=producer,
        topic=topic,
        includes_headers=own.boolean("includeHeaders", True),
        is_stream=is_stream,
        is_exactly_once=is_exactly_once,
        transaction_timeout_ms=_transaction_timeout_ms(kafka),
        app_id=_app_id(own, is_stream=is_stream, has_batch_id=batch_id is not None),
        batch_id=batch_id,
        checkpoint_location=_checkpoint_location(options) if is_stream else None,
    )


def _checkpoint_location(options: Mapping[str, str]) -> str | None:
    return next((value for name, value in options.items() if name.lower() == "checkpointlocation"), None)


def _transaction_timeout_ms(kafka: OptionReader) -> int:
    timeout_ms = kafka.integer("transaction.timeout.ms", 1, TRANSACTION_TIMEOUT_MS)
    if timeout_ms >= 2**31:
        raise OptionError(f"kafka.transaction.timeout.ms must be at most {2**31 - 1}, not {timeout_ms}")
    return timeout_ms


def _app_id(own: OptionReader, *, is_stream: bool, has_batch_id: bool) -> str | None:
    if "appId" not in own:
        return None
    if not is_stream and not has_batch_id:
        raise OptionError("appId needs batchId in a batch write: set both, or neither")
    app_id = own.text("appId", "")
    if not re.fullmatch(r"[^/]{1,200}", app_id):
        raise OptionError(f"appId must be 1 to 200 characters without a slash, not {app_id!r}")
    return app_id


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
