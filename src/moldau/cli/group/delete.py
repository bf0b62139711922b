"""`moldau group delete`: deletes groups, or only their offsets of some topics."""

from collections.abc import Sequence
from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import CommandError, report_results
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Groups, Yes, option, validate_name
from moldau.cli.progress import run_in_batches
from moldau.cli.suggestions import explain_results
from moldau.client.admin.admin import Admin
from moldau.client.errors import KafkaError

DeleteResults = dict[str, Exception | None]

GROUPS_PER_REQUEST = 100


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
    if topics:
        results = run_admin(lambda admin: _delete_offsets_of_each(admin, groups, topics), bootstrap, has_progress=True)
        report_results(results, "offset deleted")
    else:
        results = run_admin(lambda admin: _delete_groups(admin, groups), bootstrap, has_progress=True)
        report_results(results, "deleted")


async def _delete_groups(admin: Admin, groups: list[str]) -> DeleteResults:
    async def delete(names: Sequence[str]) -> DeleteResults:
        return dict(await admin.delete_groups(names))

    results = await run_in_batches("deleting", "group", groups, delete, batch_size=GROUPS_PER_REQUEST)
    return dict(await explain_results(admin.cluster, results, "group"))


async def _delete_offsets_of_each(admin: Admin, groups: list[str], topics: list[str]) -> DeleteResults:
    async def delete(names: Sequence[str]) -> DeleteResults:
        results: DeleteResults = {}
        for group in names:
            try:
                results |= await _delete_offsets(admin, group, topics)
            except KafkaError as error:
                results[group] = error
        return results

    results = await run_in_batches("deleting offsets", "group", groups, delete, batch_size=1)
    return dict(await explain_results(admin.cluster, results, "group"))


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
