"""`moldau cluster remove-voter`: removes a voter from the metadata quorum."""

from moldau.cli.admin import run_admin
from moldau.cli.console import CommandError, out_console
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, NodeId
from moldau.client.admin.admin import Admin


def cluster_remove_voter(node: NodeId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Remove a node, running or not, from the voters of the metadata quorum. It stays a broker."""

    async def operation(admin: Admin) -> None:
        quorum = await admin.describe_quorum()
        voter = next((each for each in quorum.voters if each.node_id == node), None)
        if voter is None:
            raise CommandError(f"Node {node} is not a voter. Run `moldau cluster status` to see the voters.")
        if len(quorum.voters) == 1:
            raise CommandError(f"Node {node} is the only voter. Add another one with `moldau cluster add-voter` first.")
        await admin.remove_voter(node, voter.directory_id)

    run_admin(operation, bootstrap)
    out_console.print(f"Node {node} is no longer a voter.")
