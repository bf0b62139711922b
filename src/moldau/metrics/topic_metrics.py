"""Counts of records and bytes by topic, as Kafka's BrokerTopicMetrics. The handlers of Produce and Fetch update them.
Pure."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter

from moldau.metrics.exposition import MetricFamily, Sample, counter, format_labels


@dataclass(slots=True)
class TopicMetrics:
    bytesin: int = 0
    bytesout: int = 0
    messagesin: int = 0
    replicationbytesout: int = 0
    totalproducerequests: int = 0
    failedproducerequests: int = 0
    totalfetchrequests: int = 0
    failedfetchrequests: int = 0

    def add(self, other: "TopicMetrics") -> None:
        for each in _NAMES:
            setattr(self, each, getattr(self, each) + getattr(other, each))


_NAMES = tuple(each.name for each in fields(TopicMetrics))
_HELP = {
    "bytesin": "Bytes of records that clients produced.",
    "bytesout": "Bytes of records that clients fetched.",
    "messagesin": "Records that clients produced.",
    "replicationbytesout": "Bytes of records that followers fetched.",
    "totalproducerequests": "Partitions in Produce requests.",
    "failedproducerequests": "Partitions in Produce requests that failed.",
    "totalfetchrequests": "Partitions in the responses to Fetch requests of clients.",
    "failedfetchrequests": "Partitions in the responses to Fetch requests of clients that failed.",
}


class BrokerTopicMetrics:
    def __init__(self) -> None:
        self._topics: dict[str, TopicMetrics] = {}
        self._deleted = TopicMetrics()
        """The sum of deleted topics, so that the totals do not fall."""

    def of(self, topic: str) -> TopicMetrics:
        metrics = self._topics.get(topic)
        if metrics is None:
            metrics = self._topics[topic] = TopicMetrics()
        return metrics

    def keep_only(self, exists: "Collection[str]") -> None:
        """Removes the topics that do not exist any more."""
        for name in [name for name in self._topics if name not in exists]:
            self._deleted.add(self._topics.pop(name))

    def families(self) -> Iterator[MetricFamily]:
        total = TopicMetrics()
        total.add(self._deleted)
        for each in self._topics.values():
            total.add(each)
        for name in _NAMES:
            yield counter(
                f"kafka_server_brokertopicmetrics_{name}_total", _HELP[name], self._samples(total, attrgetter(name))
            )

    def _samples(self, total: TopicMetrics, read: Callable[[TopicMetrics], int]) -> Iterator[Sample]:
        yield Sample(read(total))
        for topic, each in sorted(self._topics.items()):
            yield Sample(read(each), format_labels({"topic": topic}))
