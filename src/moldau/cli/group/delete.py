"""`moldau group delete`: deletes groups, or only their offsets of some topics."""

from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import CommandError, report_results
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Groups, Yes, option, validate_name
from moldau.client.admin.admin import Admin
from moldau.client.errors import KafkaError

DeleteResults = dict[str, Exception | None]


def group_delete(
    groups: Groups,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topics: Annotated[
        list[str] | None,
        option("--topic -t", "TOPIC", "Delete only the offsets of this topic; can be repeated.", validate_name),
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete groups without members and their committed offsets.

    moldau group delete billing --topic orders
    """
    what = f"the offsets of {', '.join(topics)} in" if topics else "the groups and all their offsets:"
    if not yes:
        typer.confirm(f"Delete {what} {', '.join(groups)}?", abort=True)
    if not topics:
        report_results(run_admin(lambda admin: admin.delete_groups(groups), bootstrap), "deleted")
        return

    async def operation(admin: Admin) -> DeleteResults:
        results: DeleteResults = {}
        for group in dict.fromkeys(groups):
            try:
                results |= await _delete_offsets(admin, group, topics)
            except KafkaError as error:
                results[group] = error
        return results

    report_results(run_admin(operation, bootstrap), "offset deleted")


async def _delete_offsets(admin: Admin, group: str, topics: list[str]) -> DeleteResults:
    # This call raises an error if the group does not exist. `list_group_offsets` would return no offsets and no error.
    await admin.describe_group(group)
    committed = await admin.list_group_offsets(group)
    results: DeleteResults = {}
    for topic in dict.fromkeys(topics):
        partitions = [each for each in committed if each.topic == topic]
        if not partitions:
            results[f"{group}, {topic}"] = CommandError("no committed offsets")
            continue
        deleted = await admin.delete_group_offsets(group, partitions)
        results |= {f"{group}, {each}": result for each, result in deleted.items()}
    return results
