"""Arithmetic of the benchmark pages: ratios, spreads, aims, percentiles and batch sizes."""

import struct

import pytest
from bench.plan import steady
from bench.raw import Responses, batch_of, count_complete_batches, fetched, records_per_batch
from bench.report import (
    OTHERS,
    Cell,
    Figures,
    Metric,
    Row,
    Table,
    count,
    decimals,
    disturbed,
    percentile,
    render_disturbed,
    render_summary,
    render_table,
    summarize,
)

RATE = Metric("records/s", count, higher_is_better=True)
CPU = Metric("CPU-s/GB", decimals(2))


def test_a_ratio_is_median_over_median_and_its_spread_is_of_neighbouring_runs() -> None:
    figures = Figures(moldau=(10.0, 30.0, 20.0), kafka=(10.0, 10.0, 40.0))
    assert figures.middle == (20.0, 10.0)
    assert figures.ratio == 2.0
    assert figures.spread == (0.5, 3.0)


def test_without_kafka_there_is_no_ratio() -> None:
    figures = Figures(moldau=(10.0,))
    assert figures.ratio is None
    assert figures.spread is None
    assert Cell(RATE, figures, aim=1.0).met is None


def test_a_kafka_figure_of_zero_gives_no_ratio() -> None:
    assert Figures((1.0, 1.0), (0.0, 0.0)).ratio is None
    assert Figures((1.0, 1.0), (0.0, 0.0)).spread is None


@pytest.mark.parametrize(
    ("metric", "aim", "ours", "met"),
    [
        (RATE, 1.0, 1.0, True),
        (RATE, 1.0, 0.98, False),
        (RATE, 2.0, 1.5, False),
        (CPU, 0.6, 0.6, True),
        (CPU, 0.6, 0.61, False),
        (CPU, 0.6, 0.1, True),
    ],
)
def test_an_aim_is_met_at_or_beyond_its_value(metric: Metric, aim: float, ours: float, met: bool) -> None:
    assert Cell(metric, Figures((ours,), (1.0,)), aim).met is met


def test_percentiles_are_values_that_were_measured() -> None:
    values = [float(number) for number in range(1, 1001)]
    assert percentile(values, 0.5) == 500
    assert percentile(values, 0.99) == 990
    assert percentile(values, 0.999) == 999
    assert percentile([7.0], 0.999) == 7.0


def _table() -> Table:
    return Table(
        "Produce",
        (
            Row("small", (Cell(RATE, Figures((200.0,), (100.0,)), 1.0), Cell(CPU, Figures((1.0,), (2.0,)), 0.6))),
            Row("large", (Cell(RATE, Figures((90.0,), (100.0,)), 1.0), Cell(CPU, Figures((3.0,), (2.0,)), 0.6))),
        ),
    )


def test_the_summary_counts_the_aims_and_names_the_worst_case() -> None:
    rate, cpu = summarize([_table()])
    assert (rate.met, len(rate.ratios), rate.worst) == (1, 2, (0.9, "large"))
    assert (cpu.met, len(cpu.ratios), cpu.worst) == (1, 2, (1.5, "large"))
    assert render_summary([_table()]).startswith("## Aims: 2 of 4 met")


def test_a_table_shows_verdicts_beside_kafka_and_only_figures_without() -> None:
    both = render_table(_table(), with_kafka=True).splitlines()
    assert both[2] == "|  | records/s, Moldau | Kafka | ratio | aim | CPU-s/GB, Moldau | Kafka | ratio | aim |"
    assert both[5] == "| large | 90 | 100 | 0.90 | ≥ 1: **not met** | 3.00 | 2.00 | 1.50 | ≤ 0.6: **not met** |"
    alone = render_table(_table(), with_kafka=False).splitlines()
    assert alone[2] == "|  | records/s, Moldau | CPU-s/GB, Moldau |"
    assert alone[4] == "| small | 200 | 1.00 |"


def test_a_column_of_different_metrics_is_headed_by_the_brokers_alone() -> None:
    rows = (Row("records/s", (Cell(RATE, Figures((1.0,), (1.0,))),)), Row("CPU", (Cell(CPU, Figures((1.0,), (1.0,))),)))
    assert render_table(Table("Mixed", rows), with_kafka=True).splitlines()[2] == "|  | Moldau | Kafka | ratio |"


def test_a_table_can_compare_other_things() -> None:
    table = Table("Start", (Row("idle", (Cell(CPU, Figures((1.0,), (2.0,)), 1.0),)),), sides=("new", "old"))
    assert render_table(table, with_kafka=True).splitlines()[2] == "|  | CPU-s/GB, new | old | ratio | aim |"
    assert "| aim, as a ratio to old |" in render_summary([table])
    assert "| aim, as a ratio |" in render_summary([table, _table()])


@pytest.mark.parametrize("batch_bytes", [16 << 10, 1 << 20])
@pytest.mark.parametrize("value_bytes", [100, 1024])
def test_a_built_batch_fills_its_size_without_going_over(value_bytes: int, batch_bytes: int) -> None:
    number = records_per_batch(value_bytes, batch_bytes)
    batch = batch_of([bytes(value_bytes)] * number, timestamp_ms=1)
    assert batch_bytes * 0.9 < len(batch) <= batch_bytes
    assert count_complete_batches(memoryview(batch)) == (number, number)


def test_a_partial_batch_at_the_end_of_a_fetch_is_not_counted() -> None:
    batch = batch_of([b"a", b"b"], timestamp_ms=1)
    assert count_complete_batches(memoryview(batch + batch[:-1])) == (2, 2)
    assert count_complete_batches(memoryview(batch[:-1])) is None


def test_fetch_responses_are_split_by_partition() -> None:
    def partition(number: int, records: bytes) -> bytes:
        return struct.pack(">ihqqqiii", number, 0, 9, 9, 0, -1, -1, len(records)) + records

    response = struct.pack(">iihii", 7, 0, 0, 0, 1) + struct.pack(">h", 1) + b"t" + struct.pack(">i", 2)
    response += partition(0, b"first") + partition(3, b"")
    assert [(number, bytes(records)) for number, records in fetched(memoryview(response))] == [(0, b"first"), (3, b"")]


def test_responses_larger_than_the_buffer_arrive_complete() -> None:
    class Wire:
        def __init__(self, data: bytes) -> None:
            self.data = data

        def recv_into(self, buffer: memoryview) -> int:
            size = min(len(buffer), len(self.data), 7)
            buffer[:size] = self.data[:size]
            self.data = self.data[size:]
            return size

    frames = [b"x" * size for size in (3, 40, 0, 25)]
    wire = Wire(b"".join(struct.pack(">i", len(frame)) + frame for frame in frames))
    responses = Responses(wire, buffer_bytes=16)  # type: ignore[arg-type]
    assert [bytes(responses.next()) for _ in frames] == frames
    with pytest.raises(ConnectionError):
        responses.next()


def test_a_page_warns_when_other_work_disturbed_a_broker() -> None:
    calm = Row("calm", (Cell(OTHERS, Figures((0.05, 0.1), (0.2,))),))
    busy = Row("busy", (Cell(OTHERS, Figures((0.05, 0.1), (0.1, 1.4))),))
    assert render_disturbed([Table("Produce", (calm,))]) == ""
    assert disturbed([Table("Produce", (calm, busy))]) == [("Produce", "busy", 1.4)]
    assert "Not a valid comparison" in render_disturbed([Table("Produce", (calm, busy))])


def test_a_broker_is_warm_only_when_its_cost_has_stopped_falling() -> None:
    kafka = [53.1, 32.5, 39.3, 30.3, 17.0, 7.6, 7.2, 6.6, 7.6]
    assert not any(steady(kafka[:rounds]) for rounds in (0, 3, 5, 6, 7))
    assert steady([*kafka, 6.5, 6.7])
    assert steady([5.0, 5.1, 4.9, 5.0])
