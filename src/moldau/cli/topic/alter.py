"""`moldau topic alter`: changes partitions and settings of a topic."""

from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.config_entries import explain_unknown_config
from moldau.cli.console import out_console
from moldau.cli.parameters import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Topic,
    option,
    parse_name_values,
    validate_int32,
    validate_text,
)
from moldau.client.admin.admin import Admin
from moldau.client.admin.requester import single_result
from moldau.client.errors import KafkaError


def topic_alter(
    topic: Topic,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    partitions: Annotated[
        int | None,
        option("--partitions -p", "NUMBER", "New number of partitions; it cannot be reduced.", validate_int32, min=1),
    ] = None,
    config: Annotated[
        list[str] | None, option("--config -c", "NAME=VALUE", "Topic setting to set; can be repeated.", validate_text)
    ] = None,
    unset: Annotated[
        list[str] | None,
        option("--unset", "NAME", "Topic setting to reset to its default; can be repeated.", validate_text),
    ] = None,
) -> None:
    """Add partitions to a topic or change its settings.

    More partitions change the mapping of keys to partitions.

    moldau topic alter orders --partitions 12 --config retention.ms=86400000
    """
    changes: dict[str, str | None] = {**parse_name_values(config or [], "--config"), **dict.fromkeys(unset or [])}
    if partitions is None and not changes:
        raise typer.BadParameter("nothing to change: use --partitions, --config or --unset")

    async def operation(admin: Admin) -> None:
        if partitions is not None:
            single_result(await admin.create_partitions({topic: partitions}))
        if changes:
            try:
                await admin.alter_topic_configs(topic, changes)
            except KafkaError as error:
                raise explain_unknown_config(error) from None

    run_admin(operation, bootstrap, topics=[topic])
    out_console.print(f"{topic}: changed", markup=False)
