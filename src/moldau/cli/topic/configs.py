"""`moldau topic configs`: shows the configs of a topic."""

from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.config_entries import print_entries, select_entries
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Json, OnlyChanged, Topic, validate_name
from moldau.client.admin.admin import Admin
from moldau.client.admin.requester import single_result
from moldau.client.admin.types import ConfigEntry, ConfigResource, ResourceType


def topic_configs(
    topic: Topic,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", callback=validate_name, help="Only these configs; all by default."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    changed: OnlyChanged = False,
    as_json: Json = False,
) -> None:
    """Show the configs of a topic with value, default, source and help text.

    The default applies when the config is unset where it is set now. `moldau topic alter` sets configs of a topic,
    `moldau broker config` those of nodes, which topics inherit.

    moldau topic configs orders

    moldau topic configs orders retention.ms segment.bytes --json
    """

    async def operation(admin: Admin) -> list[ConfigEntry]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        entries = single_result(await admin.describe_configs([resource], documentation=True))
        return select_entries(entries.values(), names or (), f"Topic {topic}", only_changed=changed)

    print_entries(run_admin(operation, bootstrap, topics=[topic]), as_json=as_json)
