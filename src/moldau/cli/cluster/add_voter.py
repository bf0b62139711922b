"""`moldau cluster add-voter`: a node gets a vote in the metadata quorum."""

from typing import Annotated

import typer

from moldau.cli.cluster_access import CommandError, out_console, run_admin
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, NodeId
from moldau.client.admin.admin import Admin, NodeEndpoint
from moldau.client.net.cluster import parse_bootstrap


def cluster_add_voter(
    node: NodeId,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="Where other nodes reach it; by default where clients do.",
        ),
    ] = None,
) -> None:
    """Give a running node a vote in the metadata quorum.

    Three or five voters are usual: of an even number one more cannot fail than of one less.
    """

    async def question(admin: Admin) -> None:
        quorum = await admin.describe_quorum()
        if any(each.node_id == node for each in quorum.voters):
            raise CommandError(f"Node {node} is a voter already.")
        observer = quorum.replica(node)
        if observer is None:
            raise CommandError(f"Node {node} does not follow the quorum: is it running?")
        listener = next((at.listener for each in quorum.endpoints.values() for at in each), "PLAINTEXT")
        host, port = await _address(admin, node, address)
        await admin.add_voter(node, observer.directory_id, NodeEndpoint(listener, host, port))

    run_admin(question, bootstrap)
    out_console.print(f"Node {node} is a voter.")


async def _address(admin: Admin, node: int, given: str | None) -> tuple[str, int]:
    if given is not None:
        try:
            return parse_bootstrap(given)[0]
        except ValueError as error:
            raise CommandError(f"--address: {error}") from None
    for broker in (await admin.describe_cluster()).brokers:
        if broker.node_id == node:
            return broker.host, broker.port
    raise CommandError(f"Node {node} is not up: `moldau cluster status` shows those that are.")
