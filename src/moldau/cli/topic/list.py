"""`moldau topic list`: lists topics."""

from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, print_notice, print_table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap


def topic_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    internal: Annotated[bool, typer.Option("--internal", help="Also list internal topics.")] = False,
) -> None:
    """List topics with their partitions and replicas."""
    topics = run_admin(lambda admin: admin.list_topics(internal=internal), bootstrap)
    if not topics:
        print_notice("There are no topics. Run `moldau topic create NAME` to create one.")
        return
    rows = make_table("topic", "partitions", "replicas", numbers=("partitions", "replicas"))
    for topic in topics:
        replicas = max((len(each.replicas) for each in topic.partitions), default=0)
        rows.add_row(topic.name, str(len(topic.partitions)), str(replicas))
    print_table(rows)
