"""Options of the data source for a pipeline's sources."""

import pytest

from moldau.pipelines.definition import PipelineDefinition, Source
from moldau.pipelines.planner.topic_streams import reads_committed, stream_options


@pytest.mark.parametrize(
    ("kafka", "options", "level"),
    [
        ({}, {}, "read_committed"),
        ({"isolation.level": "read_uncommitted"}, {}, "read_uncommitted"),
        ({}, {"kafka.isolation.level": "read_uncommitted"}, "read_uncommitted"),
        ({"isolation.level": "read_uncommitted"}, {"kafka.isolation.level": "read_committed"}, "read_committed"),
    ],
)
def test_sources_read_committed_records_unless_the_pipeline_or_the_source_says_otherwise(
    kafka: dict[str, str], options: dict[str, str], level: str
) -> None:
    source = Source("orders", topics=("orders",), options=options)
    pipeline = PipelineDefinition("p", (source,), (), (), kafka=kafka)
    assert stream_options(pipeline, source, "group", {})["kafka.isolation.level"] == level
    assert reads_committed(pipeline, source) == (level == "read_committed")
