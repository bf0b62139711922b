"""`moldau transaction abort`: ends the transaction of a transactional id, or a hanging one in a partition."""

from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import CommandError, out_console, report_results
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Yes, option, validate_int32, validate_name
from moldau.client.admin.admin import Admin
from moldau.client.admin.types import OpenTransaction, OpenTransactionStatus
from moldau.client.errors import KafkaError
from moldau.client.record import TopicPartition


def transaction_abort(
    transactional_ids: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TRANSACTIONAL_ID",
            callback=validate_name,
            help="One or more transactional ids whose transactions are aborted.",
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    topic: Annotated[
        str | None, option("--topic -t", "TOPIC", "Topic of a hanging transaction.", validate_name)
    ] = None,
    partition: Annotated[
        int | None, option("--partition", "NUMBER", "Partition of a hanging transaction.", validate_int32, min=0)
    ] = None,
    start_offset: Annotated[
        int | None, option("--start-offset", "OFFSET", "First offset of a hanging transaction.", min=0)
    ] = None,
    yes: Yes = False,
) -> None:
    """Abort the open transaction of a transactional id, or a hanging transaction in a partition.

    With a transactional id, the coordinator aborts the transaction in all partitions. Its producer is fenced and has to
    be restarted. A hanging transaction is unknown to its coordinator: an abort marker is written to its partition.
    `moldau transaction hanging` shows both.

    moldau transaction abort billing-1

    moldau transaction abort --topic orders --partition 0 --start-offset 1200
    """
    if transactional_ids:
        if (topic, partition, start_offset) != (None, None, None):
            raise typer.BadParameter("use either transactional ids or --topic, --partition and --start-offset")
        _abort_by_id(transactional_ids, bootstrap, yes=yes)
    elif topic is None or partition is None or start_offset is None:
        raise typer.BadParameter(
            "name a transactional id, or --topic, --partition and --start-offset of a hanging transaction; "
            "`moldau transaction hanging` shows them"
        )
    else:
        _abort_hanging(TopicPartition(topic, partition), start_offset, bootstrap, yes=yes)


def _abort_by_id(transactional_ids: list[str], bootstrap: str, *, yes: bool) -> None:
    if not yes:
        names = ", ".join(transactional_ids)
        typer.confirm(f"Abort the transactions of {names} and fence their producers?", abort=True)

    async def operation(admin: Admin) -> dict[str, Exception | None]:
        described = await admin.describe_transactions(transactional_ids)
        results: dict[str, Exception | None] = {}
        for each, description in described.items():
            # Fencing would create an unknown id, and would stop a producer without a transaction for nothing.
            if isinstance(description, KafkaError):
                results[each] = description
            elif description.state.startswith("Prepare"):
                partitions = ", ".join(map(str, description.partitions))
                results[each] = CommandError(
                    f"the outcome is already decided ({description.state}). These partitions still need the marker: "
                    f"{partitions}. `moldau topic describe` shows whether they have a leader."
                )
            elif description.state != "Ongoing":
                results[each] = CommandError(f"there is no open transaction, the state is {description.state}.")
        opened = [each for each in described if each not in results]
        return {**results, **await admin.fence_producers(opened)}

    report_results(run_admin(operation, bootstrap), "transaction ended, producer fenced")


def _abort_hanging(partition: TopicPartition, start_offset: int, bootstrap: str, *, yes: bool) -> None:
    async def find_hanging(admin: Admin) -> OpenTransaction:
        found = await admin.find_open_transactions([partition])
        for error in found.errors.values():
            # Without the coordinator it is not known whether the transaction hangs.
            raise error
        same = [each for each in found.transactions if each.start_offset == start_offset]
        if not same:
            others = ", ".join(str(each.start_offset) for each in found.transactions)
            advice = f"transactions are open at {others}" if others else "no transaction is open in the partition"
            raise CommandError(f"{partition}: no open transaction starts at offset {start_offset}; {advice}.")
        (transaction,) = same
        if transaction.status is not OpenTransactionStatus.HANGING:
            assert transaction.transaction is not None
            transactional_id = transaction.transaction.transactional_id
            raise CommandError(
                f"{partition}: the transaction at offset {start_offset} is not hanging, its coordinator knows it. "
                f"Run `moldau transaction abort {transactional_id}`."
            )
        return transaction

    transaction = run_admin(find_hanging, bootstrap, topics=[partition.topic])
    producer = f"producer {transaction.producer.producer_id}, epoch {transaction.producer.producer_epoch}"
    if not yes:
        typer.confirm(f"Abort the transaction of {producer} at {partition}, offset {start_offset}?", abort=True)

    async def abort(admin: Admin) -> None:
        # Search again, because the answer may have taken long.
        await admin.abort_transaction((await find_hanging(admin)).abort_spec)

    run_admin(abort, bootstrap)
    out_console.print(f"{partition}: the transaction of {producer} was aborted", markup=False)
