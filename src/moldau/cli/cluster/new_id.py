"""`moldau cluster new-id`: generates a cluster id."""

from moldau.cli.console import out_console
from moldau.node.meta_properties import new_cluster_id
from moldau.platform.system import system_platform


def cluster_new_id() -> None:
    """Print an id for a new cluster, to be passed to all its nodes with `--cluster-id`."""
    out_console.print(new_cluster_id(system_platform().random))
