"""`moldau cluster add-voter`: makes a node a voter of the metadata quorum."""

from typing import Annotated

from moldau.cli.admin import run_admin
from moldau.cli.console import CommandError, out_console
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, NodeId, option
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import NodeEndpoint
from moldau.client.net.cluster import parse_bootstrap


def cluster_add_voter(
    node: NodeId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    address: Annotated[
        str | None,
        option("--address", "HOST:PORT", "Address for other nodes; by default the one advertised to clients."),
    ] = None,
) -> None:
    """Make a running node a voter of the metadata quorum.

    Use an odd number of voters, usually three or five: four voters tolerate no more failures than three.
    """

    async def operation(admin: Admin) -> None:
        quorum = await admin.describe_quorum()
        if any(each.node_id == node for each in quorum.voters):
            raise CommandError(f"Node {node} is already a voter.")
        observer = quorum.replica(node)
        if observer is None:
            raise CommandError(f"Node {node} does not fetch from the quorum. Is it running?")
        listener = next((each.listener for endpoints in quorum.endpoints.values() for each in endpoints), "PLAINTEXT")
        host, port = await _address(admin, node, address)
        await admin.add_voter(node, observer.directory_id, NodeEndpoint(listener, host, port))

    run_admin(operation, bootstrap)
    out_console.print(f"Node {node} is now a voter.")


async def _address(admin: Admin, node: int, address: str | None) -> tuple[str, int]:
    if address is not None:
        try:
            return parse_bootstrap(address)[0]
        except ValueError as error:
            raise CommandError(f"--address: {error}") from None
    for broker in (await admin.describe_cluster()).brokers:
        if broker.node_id == node:
            return broker.host, broker.port
    raise CommandError(f"Node {node} is not up. Run `moldau cluster status` to see the nodes.")
