"""The offsets of a micro-batch's source topics, from the checkpoint, to be committed with the batch's rows.

The source commits them too, when Spark plans the next micro-batch. With the rows they are earlier, and consumer groups
show them together with the output. That needs a checkpoint which the driver can read as a file, and source topics in
the same cluster as the output.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from moldau.client.net.cluster import Cluster
from moldau.client.record import TopicPartition
from moldau.spark.source.offsets import StreamPosition

_FIRST_SOURCE_LINE = 2
"""In Spark's offset log, the sources follow after a version and metadata."""


def planned_positions(checkpoint_location: str | None, batch_number: int) -> list[StreamPosition]:
    """Returns the ends of a planned micro-batch in all streams of topics that publish their offsets."""
    directory = _local_directory(checkpoint_location)
    if directory is None:
        return []
    try:
        lines = (directory / "offsets" / str(batch_number)).read_text().splitlines()
    except OSError:
        return []
    documents = [_parse(line) for line in lines[_FIRST_SOURCE_LINE:]]
    positions = [StreamPosition.from_json(each) for each in documents if StreamPosition.is_document(each)]
    return [each for each in positions if each.published_group is not None]


def _local_directory(location: str | None) -> Path | None:
    if location is None:
        return None
    parts = urlsplit(location)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(location)


def _parse(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        # Spark writes a dash for a source without an offset, and other sources may have other formats.
        return None


async def offsets_in_cluster(
    cluster: Cluster, positions: list[StreamPosition]
) -> Mapping[str, dict[TopicPartition, int]]:
    """Returns the offsets by consumer group, without those of topics that are not in this cluster.

    Topic ids are unique, so a topic of the same name in another cluster has another id.
    """
    topics = {partition.topic for position in positions for partition in position.offsets}
    if topics:
        await cluster.refresh(sorted(topics))
    found: dict[str, dict[TopicPartition, int]] = {}
    for position in positions:
        assert position.published_group is not None
        for partition, offset in position.offsets.items():
            topic = cluster.topics.get(partition.topic)
            if topic is not None and str(topic.topic_id) == position.topic_ids.get(partition.topic):
                found.setdefault(position.published_group, {})[partition] = offset
    return found
