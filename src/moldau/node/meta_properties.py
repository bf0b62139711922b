"""The `meta.properties` file of the data directory, in Kafka's format. It contains cluster id, node id and directory
id."""

import base64
import random
from dataclasses import dataclass
from uuid import UUID

from moldau.controller.ids import random_uuid
from moldau.errors import StorageError
from moldau.platform.disk import Disk

FILE_NAME = "meta.properties"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    cluster_id: str
    node_id: int
    directory_id: UUID


def new_meta_properties(source: random.Random, cluster_id: str, node_id: int) -> MetaProperties:
    """Returns new ids for a node that starts for the first time. An empty `cluster_id` is replaced by a random one."""
    return MetaProperties(cluster_id or new_cluster_id(source), node_id, random_uuid(source))


def new_cluster_id(source: random.Random) -> str:
    return _uuid_to_text(random_uuid(source))


async def load_or_create(
    disk: Disk, directory: str, source: random.Random, cluster_id: str, node_id: int
) -> MetaProperties:
    """Loads the file, or creates it at the first start.

    Raises StorageError if the file belongs to another node or cluster.
    """
    path = f"{directory}/{FILE_NAME}"
    if not disk.exists(path):
        properties = new_meta_properties(source, cluster_id, node_id)
        await disk.replace(path, _to_properties(properties))
        return properties
    file = disk.open(path)
    try:
        properties = _from_properties(file.read(0, file.size), path)
    finally:
        file.close()
    if properties.node_id != node_id:
        raise StorageError(
            f"{directory} belongs to node {properties.node_id}, not to node {node_id}: "
            f"start with node.id={properties.node_id}, or with another data.dir"
        )
    if cluster_id and properties.cluster_id != cluster_id:
        raise StorageError(
            f"{directory} belongs to the cluster {properties.cluster_id}, not {cluster_id}: "
            f"remove the setting cluster.id, or use another data.dir"
        )
    return properties


def _uuid_to_text(id_: UUID) -> str:
    """Returns Kafka's text form of an id: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(id_.bytes).rstrip(b"=").decode()


def _to_properties(properties: MetaProperties) -> bytes:
    lines = [
        "version=1",
        f"cluster.id={properties.cluster_id}",
        f"node.id={properties.node_id}",
        f"directory.id={_uuid_to_text(properties.directory_id)}",
    ]
    return ("\n".join(lines) + "\n").encode()


def _from_properties(data: bytes, path: str) -> MetaProperties:
    try:
        lines = (line.strip() for line in data.decode().splitlines())
        values = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
        if values["version"] != "1":
            raise ValueError(f"version {values['version']}")
        directory_id = UUID(bytes=base64.urlsafe_b64decode(values["directory.id"] + "=="))
        return MetaProperties(values["cluster.id"], int(values["node.id"]), directory_id)
    except (ValueError, KeyError) as error:
        raise StorageError(
            f"{path} cannot be read ({error}): restore it, or move the data directory away to start with an empty one"
        ) from None
