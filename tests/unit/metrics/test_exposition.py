"""The text of metrics, read by Prometheus' own parser."""

import math

from prometheus_client.parser import text_string_to_metric_families

from moldau.metrics.component_metrics import IsrMetrics
from moldau.metrics.exposition import (
    PAUSE,
    SAMPLES_PER_BLOCK,
    MetricFamily,
    MetricType,
    Sample,
    SampleBlock,
    counter,
    format_labels,
    format_value,
    gauge,
    write_families,
)
from moldau.metrics.histogram import BOUNDS_MS, WINDOW_MS, DurationHistogram
from moldau.metrics.request_metrics import RequestMetrics
from moldau.metrics.topic_metrics import BrokerTopicMetrics
from moldau.metrics.windowed_rate import WindowedRate
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


def test_integers_are_written_in_bulk_and_pauses_are_empty_blocks() -> None:
    samples = [
        SampleBlock([], []),
        SampleBlock([format_labels({"n": n}) for n in range(3)], [2**60, 0, 1]),
        Sample(0.5, format_labels({"n": 3})),
    ]
    families = [PAUSE, gauge("mixed", "Help.", samples), gauge("none", "Help.", [SampleBlock([], [])])]
    blocks = list(write_families(families))
    assert blocks[:2] == ["", ""]
    assert "".join(blocks).splitlines() == [
        "# HELP mixed Help.",
        "# TYPE mixed gauge",
        f'mixed{{n="0"}} {2**60}',
        'mixed{n="1"} 0',
        'mixed{n="2"} 1',
        'mixed{n="3"} 0.5',
    ]


def test_a_rate_is_that_of_the_last_windows() -> None:
    rate = WindowedRate()
    assert rate.per_second == 0
    rate.update(1_000_000, 5.0)
    assert rate.per_second == 0
    rate.update(3_000_000, 6.0)
    assert rate.per_second == 0.5
    for second in range(4, 400):
        rate.update(second * 1_000_000, 6.0 + 2 * (second - 3))
    assert rate.per_second == 2


def test_isr_changes_are_counted() -> None:
    metrics = IsrMetrics()
    for previous, current in [((1, 2, 3), (1, 3)), ((1, 3), (3, 1)), ((1, 3), (1, 3, 2)), ((1, 2), (1, 3))]:
        metrics.record(previous, current)
    assert (metrics.shrinks, metrics.expands) == (2, 2)


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
    histogram.roll_window(WINDOW_MS)
    assert histogram.quantiles_ms()
    histogram.roll_window(2 * WINDOW_MS - 1)
    assert histogram.quantiles_ms(), "the window is not over"
    histogram.roll_window(2 * WINDOW_MS)
    assert histogram.quantiles_ms() == []
    assert histogram.average_ms == 400, "without recent durations, of all"
    for number in range(100):
        histogram.record(1.5 if number < 98 else 90.0)
    median, *_, p99, _ = histogram.quantiles_ms()
    assert 1 < median <= 2
    assert 75 < p99 <= 100
    assert math.isclose(histogram.average_ms, (98 * 1.5 + 2 * 90) / 100)


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
