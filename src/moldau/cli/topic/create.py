"""`moldau topic create`: creates topics."""

from typing import Annotated

from moldau.cli.admin import run_admin
from moldau.cli.config_entries import explain_unknown_config
from moldau.cli.console import report_results
from moldau.cli.parameters import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Topics,
    option,
    parse_name_values,
    validate_int16,
    validate_int32,
    validate_text,
)
from moldau.client.admin.types import BROKER_DEFAULT, NewTopic
from moldau.client.errors import KafkaError


def topic_create(
    topics: Topics,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Annotated[
        int | None,
        option(
            "--partitions -p",
            "NUMBER",
            "Number of partitions; by default num.partitions of the broker.",
            validate_int32,
            min=1,
        ),
    ] = None,
    replicas: Annotated[
        int | None,
        option(
            "--replicas --replication-factor -r",
            "NUMBER",
            "Replication factor; by default default.replication.factor of the broker.",
            validate_int16,
            min=1,
        ),
    ] = None,
    config: Annotated[
        list[str] | None, option("--config -c", "NAME=VALUE", "Topic setting; can be repeated.", validate_text)
    ] = None,
) -> None:
    """Create topics.

    moldau topic create orders --partitions 6 --config cleanup.policy=compact
    """
    configs = dict[str, str | None](parse_name_values(config or [], "--config"))
    new_topics = [NewTopic(name, partitions or BROKER_DEFAULT, replicas or BROKER_DEFAULT, configs) for name in topics]
    results = run_admin(lambda admin: admin.create_topics(new_topics), bootstrap)
    report_results(
        {
            name: explain_unknown_config(result) if isinstance(result, KafkaError) else result
            for name, result in results.items()
        },
        "created",
    )
