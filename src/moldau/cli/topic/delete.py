"""`moldau topic delete`: deletes topics and their records."""

from collections.abc import Sequence

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import report_results
from moldau.cli.exit_codes import CommandError
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Topics, Yes
from moldau.cli.progress import run_in_batches
from moldau.cli.suggestions import explain_results
from moldau.client.admin.admin import Admin
from moldau.client.errors import KafkaError

TOPICS_PER_REQUEST = 50


def topic_delete(topics: Topics, bootstrap: Bootstrap = DEFAULT_BOOTSTRAP, yes: Yes = False) -> None:
    """Delete topics and all their records. This cannot be undone."""
    if not yes:
        owner = "its" if len(topics) == 1 else "their"
        typer.confirm(f"Delete {', '.join(topics)} and all {owner} records?", abort=True)

    async def operation(admin: Admin) -> dict[str, KafkaError | CommandError | None]:
        async def delete(names: Sequence[str]) -> dict[str, KafkaError | None]:
            return await admin.delete_topics(names)

        results = await run_in_batches("deleting", "topic", topics, delete, batch_size=TOPICS_PER_REQUEST)
        return await explain_results(admin.cluster, results, "topic")

    report_results(run_admin(operation, bootstrap, has_progress=True), "deleted")
