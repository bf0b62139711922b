"""`moldau cluster elect-leaders`: leadership goes back to the preferred replicas, or to any that is left."""

from typing import Annotated

import typer

from moldau.cli.cluster_access import (
    err_console,
    list_partitions,
    out_console,
    pluralize,
    print_error,
    run_admin,
)
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Yes, name
from moldau.client.admin.admin import Admin, ElectionType
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition

ElectionResults = dict[TopicPartition, KafkaError | None]


def cluster_elect_leaders(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", callback=name, help="Of these topics; of all by default."),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean", help="Where no replica is in sync, let any lead. What only others had is lost."
        ),
    ] = False,
    yes: Yes = False,
) -> None:
    """Let the preferred replica of each partition lead, if it is in sync.

    A cluster does that by itself; this is for who does not want to wait.
    """
    kind = ElectionType.UNCLEAN if unclean else ElectionType.PREFERRED
    if unclean and not yes:
        typer.confirm("Elect leaders that may lack records which were acknowledged?", abort=True)

    async def question(admin: Admin) -> ElectionResults:
        if topics is None or not topics:
            return await admin.elect_leaders(kind)
        return await admin.elect_leaders(kind, await list_partitions(admin, topics))

    results = run_admin(question, bootstrap)
    failed = {
        partition: error
        for partition, error in results.items()
        if error is not None and error.code is not ErrorCode.election_not_needed
    }
    for partition, error in failed.items():
        err_console.print(f"{partition}: ", end="", markup=False)
        print_error(error)
    elected = [partition for partition, error in results.items() if error is None]
    out_console.print(f"{pluralize(len(elected), 'leader')} elected")
    if failed:
        raise typer.Exit(1)
