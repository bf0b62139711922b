"""What a run has to show: how often each fault came, how long writes stood still, and what must not have been."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.journal import Journal

PROBLEMS_SHOWN_MAX = 50


@dataclass(slots=True)
class Tally:
    kinds: Sequence[str]
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    pause_s: dict[str, float] = field(default_factory=dict)
    """The longest time in which some partition had no write acknowledged."""
    took_s: dict[str, float] = field(default_factory=dict)
    """All together, until the cluster was well again."""

    def note(self, kind: str, pause_s: float, took_s: float) -> None:
        self.counts[kind] += 1
        self.pause_s[kind] = max(pause_s, self.pause_s.get(kind, 0.0))
        self.took_s[kind] = took_s + self.took_s.get(kind, 0.0)


def table(
    tally: Tally,
    journal: Journal,
    notes: Sequence[str],
    packets: Mapping[str, int],
    problems: Sequence[str],
) -> str:
    sends = journal.history.sends
    acknowledged = sum(send.is_acknowledged for send in sends)
    read = sum(len(poll.records) for poll in journal.history.polls)
    delivered = sum(map(len, journal.delivered.values()))
    width = max(map(len, tally.kinds))
    lines = [f"note: {note}" for note in notes]
    lines += ["", f"{'fault':{width}}  times  mean until well  longest without a write to some partition"]
    for kind in tally.kinds:
        mean_s = tally.took_s.get(kind, 0.0) / max(1, tally.counts[kind])
        lines.append(
            f"{kind:{width}}  {tally.counts[kind]:5}  {mean_s:13.1f} s  {tally.pause_s.get(kind, 0.0):39.1f} s"
        )
    lines += [
        ", ".join(f"{count} {what}" for what, count in packets.items()),
        f"faults injected: {tally.counts.total()} in {tally.seconds:.0f} s",
        f"operations acknowledged: {acknowledged} of {len(sends)} writes",
        f"records read: {read}, and {delivered} delivered to a group",
        f"longest time without progress: {max(tally.pause_s.values(), default=0.0):.1f} s",
        f"anomalies: {len(problems)}",
        *(f"  {problem}" for problem in problems[:PROBLEMS_SHOWN_MAX]),
    ]
    return "\n".join(lines)
