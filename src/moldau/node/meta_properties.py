"""The `meta.properties` file of the data directory, in Kafka's format: cluster id, node id and directory id."""

import base64
from dataclasses import dataclass
from uuid import UUID

from moldau.controller.ids import Randomness, random_uuid
from moldau.errors import StorageError
from moldau.platform.disk import SmallFiles, read_small_file
from moldau.settings.broker import BrokerSettings

FILE_NAME = "meta.properties"


@dataclass(frozen=True, slots=True)
class MetaProperties:
    cluster_id: str
    node_id: int
    directory_id: UUID


async def load_or_create(files: SmallFiles, random: Randomness, settings: BrokerSettings) -> MetaProperties:
    """Loads the file, or creates it at the first start. A node that stores nothing gets new ids.

    Raises StorageError if the file belongs to another node or cluster.
    """
    directory = settings.log_dir
    other = "postgres.schema" if settings.uses_postgres else "data.dir"
    path = f"{directory}/{FILE_NAME}"
    data = None if settings.store == "memory" else read_small_file(files, path)
    if data is None:
        cluster_id = settings.cluster_id or new_cluster_id(random)
        properties = MetaProperties(cluster_id, settings.node_id, random_uuid(random))
        if settings.store != "memory":
            await files.replace(path, _to_properties(properties))
        return properties
    properties = _from_properties(data, path)
    if properties.node_id != settings.node_id:
        raise StorageError(
            f"{directory} belongs to node {properties.node_id}, not to node {settings.node_id}: "
            f"start with node.id={properties.node_id}, or with another {other}"
        )
    if settings.cluster_id and properties.cluster_id != settings.cluster_id:
        raise StorageError(
            f"{directory} belongs to the cluster {properties.cluster_id}, not {settings.cluster_id}: "
            f"remove the setting cluster.id, or use another {other}"
        )
    return properties


def new_cluster_id(random: Randomness) -> str:
    return _uuid_to_text(random_uuid(random))


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
