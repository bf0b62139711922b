"""The ack modes of the proof, and how often each may call its handler again for one fault."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

COMMIT_INTERVAL_MS = 100
HANDLER_MS = 5
"""How long the handler of one record takes at least, in all modes but `manual`."""
ACKNOWLEDGEMENT_MS = 20
"""When a record is acknowledged at the earliest in the mode `manual`."""
BATCH_RECORDS = 20
WINDOW_RECORDS = 10
RETRIES = 2

INTERVAL_RECORDS = COMMIT_INTERVAL_MS // HANDLER_MS + 1
"""The records that are handled one after another between two commits, with the one in the handler."""
WINDOW_INTERVAL_RECORDS = WINDOW_RECORDS * (COMMIT_INTERVAL_MS // ACKNOWLEDGEMENT_MS + 2)
"""The records that a full window lets pass between two commits, with those that were not acknowledged before."""


STOPPING_RECORDS = (3, 103, 203)
"""The records at which a handler fails with `on_failure="stop"`. The next process can handle them."""


class Fault(StrEnum):
    NONE = "none"
    FAILS_TWICE = "handler fails twice"
    FAILS = "handler always fails"
    STOPS = "handler stops the process"
    CONSUMER_KILLED = "consumer is killed"
    NODE_KILLED = "leader, coordinator killed"
    REBALANCE = "member joins, leaves"

    @property
    def is_of_handler(self) -> bool:
        return self in (Fault.FAILS_TWICE, Fault.FAILS)


@dataclass(frozen=True)
class Mode:
    name: str
    options: dict[str, Any]
    """The arguments of RecordListener."""
    repeats: dict[Fault, int] = field(default_factory=dict)
    """How many records may be passed to the handler again for each fault. Retries are not limited here."""
    losses: dict[Fault, int] = field(default_factory=dict)
    """How many records may never be handled to the end for each fault."""

    @property
    def is_at_most_once(self) -> bool:
        return self.options.get("commit") == "before"


MODES = {
    mode.name: mode
    for mode in (
        Mode("auto", {"ack_mode": "auto"}, repeats={Fault.STOPS: 1, Fault.CONSUMER_KILLED: INTERVAL_RECORDS}),
        Mode(
            "batch",
            {"ack_mode": "batch", "max_batch_records": BATCH_RECORDS},
            repeats={Fault.STOPS: BATCH_RECORDS, Fault.CONSUMER_KILLED: BATCH_RECORDS},
        ),
        Mode(
            "manual",
            {"ack_mode": "manual", "max_unacked_records": WINDOW_RECORDS},
            repeats={
                Fault.STOPS: WINDOW_RECORDS,
                Fault.CONSUMER_KILLED: WINDOW_INTERVAL_RECORDS,
                # The member that leaves, and the one that stays: the assignor "range" revokes all partitions.
                Fault.REBALANCE: 2 * WINDOW_RECORDS,
            },
        ),
        Mode(
            "at most once", {"ack_mode": "auto", "commit": "before"}, losses={Fault.STOPS: 1, Fault.CONSUMER_KILLED: 1}
        ),
        Mode(
            "at most once, batch",
            {"ack_mode": "batch", "commit": "before", "max_batch_records": BATCH_RECORDS},
            losses={Fault.STOPS: BATCH_RECORDS, Fault.CONSUMER_KILLED: BATCH_RECORDS},
        ),
    )
}


def failures(number: int, fault: Fault) -> int:
    """Returns how many calls of the handler fail because of this record."""
    match fault:
        case Fault.FAILS_TWICE:
            # So rare that no batch has two of them, which would use up its retries.
            return 2 if number % 100 == 3 else 0
        case Fault.FAILS:
            return RETRIES + 1 if number % 50 == 7 else 0
        case Fault.STOPS:
            return 1 if number in STOPPING_RECORDS else 0
        case _:
            return 0
