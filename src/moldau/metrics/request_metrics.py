"""Counts and durations of requests, by API. The dispatcher updates them. Pure."""

from collections import defaultdict
from collections.abc import Iterator

from moldau.metrics.exposition import MetricFamily, MetricType, Sample, format_labels, gauge
from moldau.metrics.histogram import QUANTILES, DurationHistogram
from moldau.wire.api_keys import ApiKey


class RequestMetrics:
    def __init__(self) -> None:
        self._durations: defaultdict[int, DurationHistogram] = defaultdict(DurationHistogram)

    def of(self, api_key: int) -> DurationHistogram:
        return self._durations[api_key]

    def roll_windows(self, now_ms: int) -> None:
        for each in self._durations.values():
            each.roll_window(now_ms)

    def families(self) -> Iterator[MetricFamily]:
        yield MetricFamily(
            "moldau_request_duration_seconds",
            MetricType.HISTOGRAM,
            "Time from the start of a request to its response.",
            (sample for name, each in self._named() for sample in each.samples({"request": name})),
        )
        yield gauge(
            "kafka_network_requestmetrics_totaltimems",
            "Quantiles of the time of recent requests, in milliseconds.",
            (
                Sample(value, format_labels({"request": name, "quantile": quantile}))
                for name, each in self._named()
                for quantile, value in zip(QUANTILES, each.quantiles_ms(), strict=False)
            ),
        )

    def _named(self) -> Iterator[tuple[str, DurationHistogram]]:
        for api_key, each in sorted(self._durations.items()):
            yield _request_name(api_key), each


def _request_name(api_key: int) -> str:
    """Returns the name of an API as in Kafka's metrics: `OffsetCommit`."""
    return "".join(word.capitalize() for word in ApiKey(api_key).name.split("_"))
