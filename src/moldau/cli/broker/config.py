"""`moldau broker config`: shows and changes the configs of a node, or those of all nodes of a cluster."""

from collections.abc import Sequence
from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.config_entries import print_entries, select_entries
from moldau.cli.console import out_console, print_notice
from moldau.cli.exit_codes import CommandError, ExitCode, NotFoundError
from moldau.cli.parameters import (
    DEFAULT_BOOTSTRAP,
    Bootstrap,
    Json,
    OnlyChanged,
    option,
    parse_name_values,
    validate_int32,
    validate_name,
    validate_text,
)
from moldau.cli.suggestions import LOOKUP_TIMEOUT_MS, closest_name
from moldau.client.admin.admin import Admin
from moldau.client.admin.requester import single_result
from moldau.client.admin.types import ConfigChange, ConfigEntry, ConfigResource, Operation, ResourceType
from moldau.client.errors import KafkaError


class NodeDownError(CommandError):
    """The node that has to process the request is down."""

    exit_code = ExitCode.UNAVAILABLE


def broker_config(
    node: Annotated[
        int | None,
        typer.Argument(
            metavar="NODE",
            min=0,
            callback=validate_int32,
            help="Node id; without it, the dynamic configs that apply to all nodes.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    names: Annotated[
        list[str] | None, option("--name -n", "NAME", "Show only this config; can be repeated.", validate_name)
    ] = None,
    changed: OnlyChanged = False,
    set_: Annotated[
        list[str] | None, option("--set -s", "NAME=VALUE", "Set a config at runtime; can be repeated.", validate_text)
    ] = None,
    unset: Annotated[
        list[str] | None,
        option("--unset", "NAME", "Remove a config that was set at runtime; can be repeated.", validate_name),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="With --set: also set configs that nodes do not have, for plugins.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the configs of a node, or set and unset them while it is running.

    A value set for a node overrides the one set for all nodes, which overrides the one with which the node was started.
    Both survive a restart. Configs that are read-only can only be changed with a restart.

    moldau broker config 1 --changed

    moldau broker config 1 --set log.retention.ms=86400000

    moldau broker config --set log.retention.ms=604800000

    moldau broker config --unset log.retention.ms
    """
    if force and not set_:
        raise typer.BadParameter("--force needs --set", param_hint="--force")
    resource = ConfigResource(ResourceType.BROKER, "" if node is None else str(node))
    changes = [ConfigChange(name, value) for name, value in parse_name_values(set_ or [], "--set").items()]
    changes += [ConfigChange(name, None, Operation.DELETE) for name in dict.fromkeys(unset or ())]
    if changes and (names or changed or as_json):
        raise typer.BadParameter("--set and --unset change configs; --name, --changed and --json show them")
    owner = "The cluster" if node is None else f"Node {node}"

    async def show(admin: Admin) -> list[ConfigEntry]:
        await _check_node(admin, node)
        entries = single_result(await admin.describe_configs([resource], documentation=True))
        return select_entries(entries.values(), names or (), owner, only_changed=changed)

    async def change(admin: Admin) -> None:
        await _check_node(admin, node)
        if not force:
            await _check_names(admin, node, [each.name for each in changes if each.value is not None])
        single_result(await admin.alter_configs({resource: changes}))

    if changes:
        run_admin(change, bootstrap)
        out_console.print(f"{owner}: changed", markup=False)
        return
    shown = run_admin(show, bootstrap)
    if not shown and not as_json:
        print_notice("No config is set for all nodes." if node is None else "All configs have their defaults.")
        return
    print_entries(shown, as_json=as_json)


async def _check_node(admin: Admin, node: int | None) -> None:
    """Raises an error if there is no such node, or if it is down: its configs are those that it returns itself."""
    if node is None:
        return
    cluster = await admin.describe_cluster(fenced_too=True)
    if node in [each.node_id for each in cluster.fenced]:
        raise NodeDownError(f"Node {node} is down.")
    if node not in [each.node_id for each in cluster.brokers]:
        raise NotFoundError(f"Node {node} does not exist. Run `moldau cluster status` to see the nodes.")


async def _check_names(admin: Admin, node: int | None, names: Sequence[str]) -> None:
    """Raises NotFoundError if nodes do not have one of these configs. Brokers would store it, because a plugin may use
    it, so a misspelt name would have no effect and no error."""
    if not names:
        return
    any_node = (await admin.describe_cluster()).brokers[0].node_id if node is None else node
    resource = ConfigResource(ResourceType.BROKER, str(any_node))
    known = (await Admin(admin.cluster, timeout_ms=LOOKUP_TIMEOUT_MS).describe_configs([resource]))[resource]
    if isinstance(known, KafkaError):
        # The check is not essential, and a node that has just died must not prevent the change.
        return
    problems = []
    for name in names:
        # Apache Kafka does not list the configs of single listeners.
        if name not in known and not name.startswith("listener.name."):
            closest = closest_name(name, known)
            advice = "" if closest is None else f" Did you mean {closest}?"
            problems.append(f"Nodes have no config {name}.{advice}")
    if problems:
        raise NotFoundError("\n".join([*problems, "Nothing was changed. --force sets it all the same, for a plugin."]))
