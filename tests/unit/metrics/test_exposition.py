"""The text of metrics, read by Prometheus' own parser."""

import math

from prometheus_client.parser import text_string_to_metric_families

from moldau.metrics.exposition import (
    SAMPLES_PER_BLOCK,
    MetricFamily,
    MetricType,
    Sample,
    counter,
    format_labels,
    format_value,
    gauge,
    write_families,
)
from moldau.metrics.histogram import BOUNDS_MS, DurationHistogram
from moldau.metrics.request_metrics import WINDOW_MS, RequestMetrics
from moldau.metrics.topic_metrics import BrokerTopicMetrics
from moldau.wire.api_keys import ApiKey


def parse(*families: MetricFamily) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    text = "".join(write_families(families))
    return {
        sample.name: {
            tuple(sorted(each.labels.items())): each.value for each in family.samples if each.name == sample.name
        }
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_values_and_labels_are_read_as_they_were_written() -> None:
    names = ["plain", 'quoted "name"', "back\\slash", "two\nlines", "Vltava-řeka", "", "{}=,"]
    samples = [Sample(number, format_labels({"name": each})) for number, each in enumerate(names)]
    family = gauge("a_gauge", "Help.", samples)
    assert parse(family)["a_gauge"] == {(("name", each),): number for number, each in enumerate(names)}


def test_numbers_keep_their_digits() -> None:
    assert format_value(2**62) == str(2**62)
    assert format_value(True) == "1"
    assert format_value(3.0) == "3"
    assert format_value(0.25) == "0.25"
    assert (format_value(math.inf), format_value(-math.inf), format_value(math.nan)) == ("+Inf", "-Inf", "NaN")


def test_families_without_samples_are_left_out() -> None:
    assert list(write_families([gauge("empty", "Help.", []), counter("used_total", "Help.", 3)])) == [
        "# HELP used_total Help.\n# TYPE used_total counter\nused_total 3\n"
    ]


def test_large_families_are_written_in_blocks() -> None:
    samples = [Sample(number, format_labels({"n": number})) for number in range(1_000)]
    blocks = list(write_families([gauge("large", "Help.", samples)]))
    assert len(blocks) >= 1_000 / SAMPLES_PER_BLOCK
    assert max(block.count("\n") for block in blocks) <= SAMPLES_PER_BLOCK + 2
    assert "".join(blocks).count("# TYPE") == 1


def test_a_histogram_counts_durations_up_to_each_bound() -> None:
    histogram = DurationHistogram()
    for duration_ms in (0.05, 0.1, 0.3, 4.0, 60_000.0):
        histogram.record(duration_ms)
    family = MetricFamily("d_seconds", MetricType.HISTOGRAM, "Help.", histogram.samples({"request": "Fetch"}))
    parsed = parse(family)
    buckets = {dict(labels)["le"]: value for labels, value in parsed["d_seconds_bucket"].items()}
    assert (buckets["0.0001"], buckets["0.0002"], buckets["0.0005"], buckets["0.005"]) == (2, 2, 3, 4)
    assert (buckets["30"], buckets["+Inf"]) == (4, 5)
    assert len(buckets) == len(BOUNDS_MS) + 1
    labels = (("request", "Fetch"),)
    assert parsed["d_seconds_count"][labels] == 5
    assert math.isclose(parsed["d_seconds_sum"][labels], 60.00445)


def test_quantiles_are_those_of_recent_requests() -> None:
    histogram = DurationHistogram()
    assert histogram.quantiles_ms() == []
    for _ in range(1_000):
        histogram.record(400.0)
    histogram.start_window()
    histogram.start_window()
    assert histogram.quantiles_ms() == []
    for number in range(100):
        histogram.record(1.5 if number < 98 else 90.0)
    median, *_, p99, _ = histogram.quantiles_ms()
    assert 1 < median <= 2
    assert 75 < p99 <= 100


def test_requests_have_kafkas_names() -> None:
    metrics = RequestMetrics()
    metrics.of(ApiKey.OFFSET_COMMIT).record(3.0)
    metrics.roll_windows(WINDOW_MS)
    parsed = parse(*metrics.families())
    assert (("quantile", "0.50"), ("request", "OffsetCommit")) in parsed["kafka_network_requestmetrics_totaltimems"]
    assert parsed["moldau_request_duration_seconds_count"] == {(("request", "OffsetCommit"),): 1}


def test_totals_of_topics_do_not_fall_when_a_topic_is_deleted() -> None:
    metrics = BrokerTopicMetrics()
    metrics.of("kept").bytesin += 5
    metrics.of("deleted").bytesin += 7
    metrics.keep_only({"kept"})
    parsed = parse(*metrics.families())["kafka_server_brokertopicmetrics_bytesin_total"]
    assert parsed == {(): 12, (("topic", "kept"),): 5}
