"""`moldau transaction list`: lists transactional ids."""

from typing import Annotated

import typer

from moldau.cli.admin import run_admin
from moldau.cli.console import make_table, print_json_lines, print_notice, print_table
from moldau.cli.parameters import DEFAULT_BOOTSTRAP, Bootstrap, Json, option, validate_duration, validate_name
from moldau.settings.option_parser import parse_duration

STATES = ("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort")


def _validate_states(value: list[str] | None) -> list[str] | None:
    """Returns the states as brokers spell them."""
    by_lower_case = {each.lower(): each for each in STATES}
    states = []
    for each in value or ():
        if each.lower() not in by_lower_case:
            raise typer.BadParameter(f"{each!r} is not a state; there are {', '.join(STATES)}")
        states.append(by_lower_case[each.lower()])
    return states


def transaction_list(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    state: Annotated[
        list[str] | None,
        option("--state", "STATE", f"Only this state: {', '.join(STATES)}; can be repeated.", _validate_states),
    ] = None,
    producer_id: Annotated[
        list[int] | None, option("--producer-id", "NUMBER", "Only this producer id; can be repeated.")
    ] = None,
    longer_than: Annotated[
        str | None,
        option(
            "--longer-than", "DURATION", "Only transactions that started longer ago, such as 30s.", validate_duration
        ),
    ] = None,
    pattern: Annotated[
        str | None,
        option("--pattern", "REGEX", "Only transactional ids that match this regular expression.", validate_name),
    ] = None,
    as_json: Json = False,
) -> None:
    """List transactional ids with their coordinators and states.

    moldau transaction list --state Ongoing --longer-than 5min

    moldau transaction list --pattern 'billing-.*'
    """
    listed = run_admin(
        lambda admin: admin.list_transactions(
            states=state or (),
            producer_ids=producer_id or (),
            longer_than_ms=-1 if longer_than is None else parse_duration(longer_than).milliseconds,
            pattern=pattern,
        ),
        bootstrap,
    )
    if as_json:
        print_json_lines(each._asdict() for each in listed)
        return
    if not listed:
        is_filtered = state or producer_id or longer_than or pattern
        print_notice("No transactional ids match." if is_filtered else "There are no transactional ids.")
        return
    rows = make_table("transactional id", "producer id", "state", "coordinator", numbers=("producer id", "coordinator"))
    for each in listed:
        rows.add_row(each.transactional_id, str(each.producer_id), each.state, str(each.coordinator))
    print_table(rows)
