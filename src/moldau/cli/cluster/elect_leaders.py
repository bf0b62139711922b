"""`moldau cluster elect-leaders`: leadership goes back to the preferred replicas, or to any that is left."""

from typing import Annotated

import typer

from moldau.cli.arguments import LOCAL, Bootstrap, Yes, name
from moldau.cli.cluster_access import ask, complain, complaints, counted, output, partitions_of
from moldau.client.admin.admin import Admin, ElectionType
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition

Told = dict[TopicPartition, KafkaError | None]


def cluster_elect_leaders(
    topics: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TOPIC]...", callback=name, help="Of these topics; of all by default."),
    ] = None,
    bootstrap: Bootstrap = LOCAL,
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

    async def question(admin: Admin) -> Told:
        if topics is None or not topics:
            return await admin.elect_leaders(kind)
        return await admin.elect_leaders(kind, await partitions_of(admin, topics))

    results = ask(question, bootstrap)
    failed = {
        partition: error
        for partition, error in results.items()
        if error is not None and error.code is not ErrorCode.election_not_needed
    }
    for partition, error in failed.items():
        complaints.print(f"{partition}: ", end="", markup=False)
        complain(error)
    elected = [partition for partition, error in results.items() if error is None]
    output.print(f"{counted(len(elected), 'leader')} elected")
    if failed:
        raise typer.Exit(1)
