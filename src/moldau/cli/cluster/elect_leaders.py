"""`moldau cluster elect-leaders`: elects preferred replicas, or any replica, as leaders."""

from collections.abc import Sequence
from typing import Annotated

import typer

from moldau.cli.admin import list_partitions, run_admin
from moldau.cli.console import exit_on_failures, out_console, pluralize
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Yes, validate_name
from moldau.cli.progress import progress_bar, run_in_batches
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import ElectionType
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition

PARTITIONS_PER_REQUEST = 1_000

ElectionResults = dict[TopicPartition, KafkaError | None]


def cluster_elect_leaders(
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC", callback=validate_name, help="Topics whose leaders are elected; all by default."
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean",
            help="Elect any replica if no in-sync replica is available. Records that it does not have are lost.",
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Elect the preferred replica of each partition as leader, if it is in sync.

    The controller does this periodically; this command does it at once.
    """
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    if unclean and not yes:
        typer.confirm("Elect leaders that may not have all acknowledged records?", abort=True)

    async def operation(admin: Admin) -> ElectionResults:
        if not topics:
            # Only the controller knows which partitions need an election, so the bar has no end.
            with progress_bar("electing leaders"):
                return await admin.elect_leaders(kind)

        async def elect(batch: Sequence[TopicPartition]) -> ElectionResults:
            return await admin.elect_leaders(kind, batch)

        partitions = await list_partitions(admin, topics)
        return await run_in_batches(
            "electing leaders", "partition", partitions, elect, batch_size=PARTITIONS_PER_REQUEST
        )

    results = run_admin(operation, bootstrap, topics=topics or (), has_progress=True)
    failed = {
        partition: error
        for partition, error in results.items()
        if error is not None and error.code is not ErrorCode.election_not_needed
    }
    elected = [partition for partition, error in results.items() if error is None]
    out_console.print(f"{pluralize(len(elected), 'leader')} elected")
    exit_on_failures(failed)
