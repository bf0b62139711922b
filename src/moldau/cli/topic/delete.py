"""`moldau topic delete`: topics and everything in them."""

import typer

from moldau.cli.cluster_access import report_results, run_admin
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Topics, Yes


def topic_delete(
    topics: Topics,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    yes: Yes = False,
) -> None:
    """Delete topics with all their records. There is no way back."""
    if not yes:
        typer.confirm(f"Delete {', '.join(topics)} with all records?", abort=True)
    report_results(run_admin(lambda admin: admin.delete_topics(topics), bootstrap), "deleted")
