"""The connection of a pipeline to its cluster, as options of the data source or as arguments of the client."""

from collections.abc import Mapping
from typing import Any

from moldau.pipelines.definition import PipelineDefinition, PipelineError
from moldau.spark.errors import OptionError
from moldau.spark.source.options import parse_connection


def connection_options(pipeline: PipelineDefinition) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": pipeline.bootstrap,
        **{f"kafka.{name}": value for name, value in pipeline.kafka.items()},
    }


def cluster_settings(pipeline: PipelineDefinition) -> Mapping[str, Any]:
    """Returns the arguments of `Cluster`. Raises PipelineError."""
    try:
        return parse_connection(connection_options(pipeline))
    except OptionError as error:
        raise PipelineError(f"the connection of the pipeline {pipeline.name} is not valid: {error}") from None
