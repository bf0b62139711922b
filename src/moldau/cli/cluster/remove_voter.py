"""`moldau cluster remove-voter`: a node loses its vote in the metadata quorum."""

from moldau.cli.cluster_access import CommandError, out_console, run_admin
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, NodeId
from moldau.client.admin.admin import Admin


def cluster_remove_voter(node: NodeId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP) -> None:
    """Take a node's vote in the metadata quorum, also of one that is gone. It goes on as a broker."""

    async def question(admin: Admin) -> None:
        quorum = await admin.describe_quorum()
        voter = next((each for each in quorum.voters if each.node_id == node), None)
        if voter is None:
            raise CommandError(f"Node {node} is no voter: `moldau cluster status` shows who is.")
        if len(quorum.voters) == 1:
            raise CommandError(
                f"Node {node} is the only voter: add another with `moldau cluster add-voter` first."
            )
        await admin.remove_voter(node, voter.directory_id)

    run_admin(question, bootstrap)
    out_console.print(f"Node {node} is no voter any more.")
