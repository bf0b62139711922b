"""`moldau topic delete`: deletes topics and their records."""

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import report_results
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Topics, Yes


def topic_delete(topics: Topics, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, yes: Yes = False) -> None:
    """Delete topics and all their records. This cannot be undone."""
    if not yes:
        typer.confirm(f"Delete {', '.join(topics)} and all their records?", abort=True)
    report_results(run_admin(lambda admin: admin.delete_topics(topics), bootstrap), "deleted")
