"""`moldau group delete`: groups with what they committed, or the offsets of some topics only."""

from typing import Annotated

import typer

from moldau.cli.asking import LOCAL, Bootstrap, ask, tell_each
from moldau.client.admin import Admin
from moldau.client.admin_base import Results
from moldau.client.record import TopicPartition


def group_delete(
    groups: Annotated[list[str], typer.Argument(metavar="GROUP...")],
    bootstrap: Bootstrap = LOCAL,
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", "-t", help="Forget only what was committed for this topic; may be repeated."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete groups without members, and the offsets they committed."""
    what = f"the offsets of {', '.join(topic)} in" if topic else "the groups and all offsets of"
    if not yes:
        typer.confirm(f"Delete {what} {', '.join(groups)}?", abort=True)
    if not topic:
        tell_each(ask(lambda admin: admin.delete_groups(groups), bootstrap), "deleted")
        return
    topics = topic

    async def question(admin: Admin) -> Results[TopicPartition, None]:
        results: Results[TopicPartition, None] = {}
        for group in groups:
            committed = await admin.list_group_offsets(group)
            forgotten = [each for each in committed if each.topic in topics]
            if forgotten:
                results.update(await admin.delete_group_offsets(group, forgotten))
        return results

    tell_each(ask(question, bootstrap), "offset deleted")
