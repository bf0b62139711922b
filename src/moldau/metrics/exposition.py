"""Prometheus' text format. Pure.

Metrics are written as blocks of lines, so that the node can do other work between two blocks.
"""

from collections.abc import Iterable, Iterator, Mapping
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


class MetricFamily(NamedTuple):
    name: str
    type: MetricType
    help: str
    samples: Iterable[Sample]
    """May be a generator, which reads the values while the family is written."""


def gauge(name: str, text: str, samples: "Iterable[Sample] | float") -> MetricFamily:
    return MetricFamily(name, MetricType.GAUGE, text, _as_samples(samples))


def counter(name: str, text: str, samples: "Iterable[Sample] | float") -> MetricFamily:
    return MetricFamily(name, MetricType.COUNTER, text, _as_samples(samples))


def _as_samples(samples: "Iterable[Sample] | float") -> Iterable[Sample]:
    return (Sample(samples),) if isinstance(samples, int | float) else samples


def format_labels(labels: Mapping[str, object]) -> str:
    """Returns labels as they are written: `{topic="orders",partition="0"}`."""
    return "{" + ",".join(f'{name}="{str(value).translate(_ESCAPES)}"' for name, value in labels.items()) + "}"


def format_value(value: float) -> str:
    """Returns a number as Prometheus reads it. Integers keep all digits."""
    if isinstance(value, int):
        return str(int(value))
    if not isfinite(value):
        return "NaN" if isnan(value) else "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value.is_integer() else repr(value)


def write_families(families: Iterable[MetricFamily]) -> Iterator[str]:
    """Yields blocks of text with up to SAMPLES_PER_BLOCK samples. A family without samples is left out."""
    for family in families:
        lines: list[str] = []
        is_begun = False
        for sample in family.samples:
            if not is_begun:
                is_begun = True
                lines += (f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.type}")
            lines.append(f"{family.name}{sample.suffix}{sample.labels} {format_value(sample.value)}")
            if len(lines) >= SAMPLES_PER_BLOCK:
                yield "\n".join(lines) + "\n"
                lines.clear()
        if lines:
            yield "\n".join(lines) + "\n"
