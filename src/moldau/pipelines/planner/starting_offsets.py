"""The starting offsets of a generation, which are resolved once and stored with the checkpoints.

All queries of a generation start at the same offsets, also those that are added to the pipeline later.
"""

import json
from collections.abc import Mapping

from moldau.client.record import TopicPartition
from moldau.pipelines.definition import PipelineDefinition, PipelineError, Source
from moldau.pipelines.planner.ownership import FileStore
from moldau.pipelines.planner.topic_streams import data_source_options, starting_options, stream_options
from moldau.spark.errors import SparkSourceError, user_facing_errors
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.source.offsets import Offsets, StreamPosition
from moldau.spark.source.options import SourceOptions, parse_source_options
from moldau.spark.source.partition_catalog import PartitionCatalog
from moldau.spark.source.planner import plan_start


def starting_options_for(
    files: FileStore,
    pipeline: PipelineDefinition,
    source: Source,
    start: str | None,
    directory: str,
    *,
    has_started: bool,
) -> dict[str, str]:
    """Returns the starting options for a query without a checkpoint. Raises PipelineError.

    `start` is `earliest`, `latest`, an ISO time, or None for the source's setting. Offsets stored in `directory` are
    used only if `has_started`, that is, if a query of the generation has started.
    """
    at = start or source.starting
    options_of_source = starting_options(at)
    if at == "earliest" or any(name.lower().startswith("starting") for name in data_source_options(source.options)):
        return options_of_source
    options = parse_source_options(stream_options(pipeline, source, "start", options_of_source), is_stream=True)
    path = f"{directory}/{source.name}.start.json"
    stored = read_starting_offsets(files, path) if has_started else None
    try:
        with user_facing_errors(options.bootstrap):
            found = event_loop_thread().run(_find_offsets(options, stored))
    except SparkSourceError as error:
        raise PipelineError(f"the source {source.name}: {error}") from None
    text = json.dumps(StreamPosition(found).to_json())
    if stored is None:
        files.write(path, text + "\n")
    # If there are no partitions, no offsets are needed. Partitions created later are read from their first record.
    return {"startingOffsets": text} if found else options_of_source


async def _find_offsets(options: SourceOptions, stored: Offsets | None) -> Offsets:
    catalog = PartitionCatalog(options, is_stream=True)
    try:
        if stored is None:
            return await plan_start(catalog, options)
        partitions = await catalog.require_partitions()
        return clamp_offsets(
            stored, await catalog.earliest_offsets(partitions), await catalog.latest_offsets(partitions)
        )
    finally:
        catalog.close()


def clamp_offsets(stored: Mapping[TopicPartition, int], first: Offsets, last: Offsets) -> Offsets:
    """Returns the starting offset of each partition: the stored one if it is still in the log, or the earliest one."""
    return {
        partition: stored[partition]
        if partition in stored and offset <= stored[partition] <= last.get(partition, -1)
        else offset
        for partition, offset in first.items()
    }


def read_starting_offsets(files: FileStore, path: str) -> Offsets | None:
    text = files.read(path)
    if text is None:
        return None
    try:
        return StreamPosition.from_json(json.loads(text)).offsets
    except (ValueError, TypeError, AttributeError):
        raise PipelineError(
            f"{path} cannot be read. It has the starting offsets of this generation: restore it, or start over "
            "with moldau pipeline replay --from earliest"
        ) from None
