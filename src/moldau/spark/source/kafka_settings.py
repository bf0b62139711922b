"""The settings of Kafka's clients that may be given as `kafka.*` options, so that a misspelt one is noticed.

Some have a meaning here; the others tune a Java client that is not there, and a query that was written for one is read
all the same.
"""

from collections.abc import Mapping

from moldau.client.security.config import PROPERTIES
from moldau.settings.values import did_you_mean
from moldau.spark.errors import OptionError

PREFIX = "kafka."
SECURITY = ("security.", "ssl.", "sasl.", "enable.ssl.", "enable.sasl.")
"""Settings that begin so are `moldau.client.security.config`'s to know."""

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


def kafka_settings(options: Mapping[str, str]) -> dict[str, str]:
    """What follows `kafka.` in the options, by names in lower case; raises OptionError for what is no setting of
    Kafka's."""
    found = {}
    for option, value in options.items():
        if option.lower().startswith(PREFIX):
            name = option.lower().removeprefix(PREFIX)
            if name not in NAMES and not name.startswith(SECURITY):
                raise OptionError(f"Kafka has no setting {name!r}, given as {option}{_nearest(name)}")
            found[name] = value
    return found


def _nearest(name: str) -> str:
    return did_you_mean(PREFIX + name, sorted(PREFIX + each for each in (*NAMES, *PROPERTIES)))
