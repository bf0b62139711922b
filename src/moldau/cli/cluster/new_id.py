"""`moldau cluster new-id`: generates a cluster id."""

from moldau.cli.console import out_console
from moldau.controller.ids import random_uuid
from moldau.node.meta_properties import uuid_to_text
from moldau.platform.system import system_platform


def cluster_new_id() -> None:
    """Print an id for a new cluster, to be passed to all its nodes with `--cluster-id`."""
    out_console.print(uuid_to_text(random_uuid(system_platform().random)))
