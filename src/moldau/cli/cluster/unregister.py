"""`moldau cluster unregister`: the cluster forgets a node that will not come back."""

import typer

from moldau.cli.cluster_access import CommandError, out_console, run_admin
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, NodeId, Yes
from moldau.client.admin.admin import Admin


def cluster_unregister(node: NodeId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, yes: Yes = False) -> None:
    """Forget a node that is stopped and will not come back. `moldau cluster drain` moves its replicas away first."""
    if not yes:
        typer.confirm(f"Forget node {node}?", abort=True)

    async def question(admin: Admin) -> None:
        alive = [each.node_id for each in (await admin.describe_cluster()).brokers]
        if node in alive:
            raise CommandError(f"Node {node} is up: stop it first, or it would register again.")
        kept = [
            f"{topic.name}-{each.index}"
            for topic in await admin.list_topics(internal=True)
            for each in topic.partitions
            if node in each.replicas
        ]
        if kept:
            more = " and others" if len(kept) > 1 else ""
            raise CommandError(
                f"Node {node} still counts as a replica of {kept[0]}{more}: `moldau cluster drain {node}` first. Where "
                "it was the last in sync nothing can be moved: elect another replica before that (`moldau cluster "
                "elect-leaders --unclean`), or delete the topic."
            )
        await admin.unregister_broker(node)

    run_admin(question, bootstrap)
    out_console.print(f"Node {node} is forgotten.")
