"""`moldau topic list`: lists topics."""

from typing import Annotated, Any

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, print_json_lines, print_notice, print_table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Json
from moldau.client.net.metadata import TopicInfo


def topic_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    internal: Annotated[bool, typer.Option("--internal", help="Also list internal topics.")] = False,
    as_json: Json = False,
) -> None:
    """List topics with their partitions and replicas."""
    topics = run_admin(lambda admin: admin.list_topics(internal=internal), bootstrap)
    if as_json:
        print_json_lines(map(_to_json, topics))
        return
    if not topics:
        print_notice("There are no topics. Run `moldau topic create NAME` to create one.")
        return
    rows = make_table("topic", "partitions", "replicas", numbers=("partitions", "replicas"))
    for topic in topics:
        rows.add_row(topic.name, str(len(topic.partitions)), str(_replication_factor(topic)))
    print_table(rows)


def _replication_factor(topic: TopicInfo) -> int:
    return max((len(each.replicas) for each in topic.partitions), default=0)


def _to_json(topic: TopicInfo) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "topic_id": topic.topic_id,
        "partitions": len(topic.partitions),
        "replication_factor": _replication_factor(topic),
        "is_internal": topic.is_internal,
    }
