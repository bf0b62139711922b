"""`moldau topic list`: the topics of a cluster."""

from typing import Annotated

import typer

from moldau.cli.arguments import LOCAL, Bootstrap
from moldau.cli.cluster_access import ask, say, show, table


def topic_list(
    bootstrap: Bootstrap = LOCAL,
    internal: Annotated[
        bool, typer.Option("--internal", help="Also those that brokers keep for themselves.")
    ] = False,
) -> None:
    """List topics with their partitions and replicas."""
    topics = ask(lambda admin: admin.list_topics(internal=internal), bootstrap)
    if not topics:
        say("There are no topics yet: `moldau topic create NAME` makes one.")
        return
    rows = table("topic", "partitions", "replicas", numbers=("partitions", "replicas"))
    for topic in topics:
        replicas = max((len(each.replicas) for each in topic.partitions), default=0)
        rows.add_row(topic.name, str(len(topic.partitions)), str(replicas))
    show(rows)
