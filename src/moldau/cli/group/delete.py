"""`moldau group delete`: groups with what they committed, or the offsets of some topics only."""

from typing import Annotated

import typer

from moldau.cli.cluster_access import CommandError, report_results, run_admin
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Groups, Yes, name
from moldau.client.admin.admin import Admin
from moldau.client.errors import KafkaError

DeleteResults = dict[str, Exception | None]


def group_delete(
    groups: Groups,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC",
            callback=name,
            help="Forget only what was committed of this topic; may be repeated.",
        ),
    ] = None,
    yes: Yes = False,
) -> None:
    """Delete groups without members, and the offsets they committed.

    moldau group delete billing --topic orders
    """
    what = f"the offsets of {', '.join(topics)} in" if topics else "the groups and all offsets of"
    if not yes:
        typer.confirm(f"Delete {what} {', '.join(groups)}?", abort=True)
    if not topics:
        report_results(run_admin(lambda admin: admin.delete_groups(groups), bootstrap), "deleted")
        return

    async def question(admin: Admin) -> DeleteResults:
        told: DeleteResults = {}
        for group in dict.fromkeys(groups):
            try:
                told |= await _delete_offsets(admin, group, topics)
            except KafkaError as error:
                told[group] = error
        return told

    report_results(run_admin(question, bootstrap), "offset deleted")


async def _delete_offsets(admin: Admin, group: str, topics: list[str]) -> DeleteResults:
    # A group that does not exist has committed nothing either, but who mistyped its name should hear of it.
    await admin.describe_group(group)
    committed = await admin.list_group_offsets(group)
    told: DeleteResults = {}
    for topic in dict.fromkeys(topics):
        partitions = [each for each in committed if each.topic == topic]
        if not partitions:
            told[f"{group}, {topic}"] = CommandError("nothing is committed")
            continue
        results = await admin.delete_group_offsets(group, partitions)
        told |= {f"{group}, {each}": result for each, result in results.items()}
    return told
