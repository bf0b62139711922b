"""`moldau topic delete`: topics and everything in them."""

import typer

from moldau.cli.arguments import LOCAL, Bootstrap, Topics, Yes
from moldau.cli.cluster_access import ask, tell_each


def topic_delete(
    topics: Topics,
    bootstrap: Bootstrap = LOCAL,
    yes: Yes = False,
) -> None:
    """Delete topics with all their records. There is no way back."""
    if not yes:
        typer.confirm(f"Delete {', '.join(topics)} with all records?", abort=True)
    tell_each(ask(lambda admin: admin.delete_topics(topics), bootstrap), "deleted")
