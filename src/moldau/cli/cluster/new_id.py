"""`moldau cluster new-id`: an id for a new cluster, to be given to all its nodes."""

from moldau.cli.cluster_access import output
from moldau.controller.ids import new_id
from moldau.node.identity import as_text
from moldau.platform.system import system_platform


def cluster_new_id() -> None:
    """Print an id for a new cluster: all its nodes are started with it (`--cluster-id`)."""
    output.print(as_text(new_id(system_platform().random)))
