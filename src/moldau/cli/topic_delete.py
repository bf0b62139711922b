"""`moldau topic delete`: topics and everything in them."""

from typing import Annotated

import typer

from moldau.cli.asking import LOCAL, Bootstrap, ask, tell_each


def topic_delete(
    names: Annotated[list[str], typer.Argument(metavar="TOPIC...")],
    bootstrap: Bootstrap = LOCAL,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete topics with all their records. There is no way back."""
    if not yes:
        typer.confirm(f"Delete {', '.join(names)} with all records?", abort=True)
    tell_each(ask(lambda admin: admin.delete_topics(names), bootstrap), "deleted")
