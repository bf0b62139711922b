"""Prometheus' text format. Pure.

Metrics are written as blocks of lines, so that the node can do other work between two blocks. Where values are computed
for long, families and samples contain pauses: an empty block.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from math import isfinite, isnan
from typing import NamedTuple

SAMPLES_PER_BLOCK = 100
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class MetricType(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Sample(NamedTuple):
    value: float
    labels: str = ""
    """The labels as text; see `format_labels`."""
    suffix: str = ""
    """The end of the sample's name, such as `_bucket`."""


class SampleBlock(NamedTuple):
    """Some hundred samples. They are written several times faster than one by one."""

    labels: Sequence[str]
    values: Sequence[int | str]
    """Integers without bools, or texts of `format_value`."""


Samples = Iterable[Sample | SampleBlock]


class MetricFamily(NamedTuple):
    name: str
    type: MetricType
    help: str
    samples: Samples
    """May be a generator, which reads the values while the family is written."""


PAUSE = None
"""Instead of a family: the reader of the blocks may do other work before the next family is computed."""


def gauge(name: str, text: str, samples: "Samples | float") -> MetricFamily:
    return MetricFamily(name, MetricType.GAUGE, text, _as_samples(samples))


def counter(name: str, text: str, samples: "Samples | float") -> MetricFamily:
    return MetricFamily(name, MetricType.COUNTER, text, _as_samples(samples))


def _as_samples(samples: "Samples | float") -> Samples:
    return (Sample(samples),) if isinstance(samples, int | float) else samples


def format_labels(labels: Mapping[str, object]) -> str:
    """Returns labels as they are written: `{topic="orders",partition="0"}`."""
    return "{" + ",".join(f'{name}="{escape_label(str(value))}"' for name, value in labels.items()) + "}"


def escape_label(value: str) -> str:
    return value.translate(_ESCAPES)


def format_value(value: float) -> str:
    """Returns a number as Prometheus reads it. Integers keep all digits."""
    if isinstance(value, int):
        return str(int(value))
    if not isfinite(value):
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() else repr(value)


def write_families(families: "Iterable[MetricFamily | None]") -> Iterator[str]:
    """Yields blocks of text with up to SAMPLES_PER_BLOCK samples, or those of one SampleBlock. A PAUSE, and
    SampleBlock without samples, are an empty block. A family without samples is left out."""
    for family in families:
        if family is None:
            yield ""
            continue
        name = family.name
        lines: list[str] = []
        is_begun = False
        for sample in family.samples:
            if not is_begun and (isinstance(sample, Sample) or sample.values):
                is_begun = True
                lines += (f"# HELP {name} {family.help}", f"# TYPE {name} {family.type}")
            if isinstance(sample, Sample):
                lines.append(f"{name}{sample.suffix}{sample.labels} {format_value(sample.value)}")
                if len(lines) < SAMPLES_PER_BLOCK:
                    continue
            else:
                lines += [f"{name}{labels} {value}" for labels, value in zip(sample.labels, sample.values, strict=True)]
            yield _join(lines)
            lines.clear()
        if lines:
            yield _join(lines)


def _join(lines: Sequence[str]) -> str:
    return "\n".join((*lines, ""))
