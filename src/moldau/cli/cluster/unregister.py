"""`moldau cluster unregister`: removes a stopped node from the cluster."""

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import CommandError, out_console
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, NodeId, Yes
from moldau.client.admin.admin import Admin


def cluster_unregister(node: NodeId, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, yes: Yes = False) -> None:
    """Remove a stopped node from the cluster. Move its replicas to other nodes first with `moldau cluster drain`."""
    if not yes:
        typer.confirm(f"Remove node {node} from the cluster?", abort=True)

    async def operation(admin: Admin) -> None:
        running = [each.node_id for each in (await admin.describe_cluster()).brokers]
        if node in running:
            raise CommandError(f"Node {node} is running. Stop it first, or it will register again.")
        replicas = [
            f"{topic.name}-{each.index}"
            for topic in await admin.list_topics(internal=True)
            for each in topic.partitions
            if node in each.replicas
        ]
        if replicas:
            more = " and others" if len(replicas) > 1 else ""
            raise CommandError(
                f"Node {node} is still a replica of {replicas[0]}{more}. Run `moldau cluster drain {node}` first. If "
                "it is the last in-sync replica, its partition cannot be moved: elect another replica with `moldau "
                "cluster elect-leaders --unclean`, or delete the topic."
            )
        await admin.unregister_broker(node)

    run_admin(operation, bootstrap)
    out_console.print(f"Node {node} is removed from the cluster.")
