"""`moldau cluster new-id`: an id for a new cluster, to be given to all its nodes."""

from moldau.cli.cluster_access import out_console
from moldau.controller.ids import random_uuid
from moldau.node.meta_properties import uuid_to_text
from moldau.platform.system import system_platform


def cluster_new_id() -> None:
    """Print an id for a new cluster: all its nodes are started with it (`--cluster-id`)."""
    out_console.print(uuid_to_text(random_uuid(system_platform().random)))
