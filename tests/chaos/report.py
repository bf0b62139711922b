"""Report of a run: number of faults, length of write pauses, and anomalies."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.recorder import HistoryRecorder
from chaos.transaction_recorder import TransactionRecorder
from moldau.testing.simulation.checkers.history_transactions import TransactionOutcome

ANOMALIES_SHOWN_MAX = 50


@dataclass(slots=True)
class FaultStats:
    kinds: Sequence[str]
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    pause_s: dict[str, float] = field(default_factory=dict)
    """Longest time in which some partition acknowledged no write."""
    recovery_s: dict[str, float] = field(default_factory=dict)
    """Total time until the cluster was healthy again."""

    def add(self, kind: str, pause_s: float, recovery_s: float) -> None:
        self.counts[kind] += 1
        self.pause_s[kind] = max(pause_s, self.pause_s.get(kind, 0.0))
        self.recovery_s[kind] = recovery_s + self.recovery_s.get(kind, 0.0)


def render_report(
    stats: FaultStats,
    recorder: HistoryRecorder,
    transactions: TransactionRecorder,
    notes: Sequence[str],
    packets: Mapping[str, int],
    anomalies: Sequence[str],
) -> str:
    sends = recorder.history.sends
    acknowledged = sum(send.is_acknowledged for send in sends)
    read = sum(len(poll.records) for poll in recorder.history.polls)
    delivered = sum(map(len, recorder.delivered.values()))
    width = max(map(len, stats.kinds))
    lines = [f"note: {note}" for note in notes]
    lines += ["", f"{'fault':{width}}  times  mean recovery  longest pause of writes to a partition"]
    for kind in stats.kinds:
        mean_s = stats.recovery_s.get(kind, 0.0) / max(1, stats.counts[kind])
        lines.append(
            f"{kind:{width}}  {stats.counts[kind]:5}  {mean_s:11.1f} s  {stats.pause_s.get(kind, 0.0):37.1f} s"
        )
    lines += [
        ", ".join(f"{count} {what}" for what, count in packets.items()),
        f"faults injected: {stats.counts.total()} in {stats.seconds:.0f} s",
        f"operations acknowledged: {acknowledged} of {len(sends)} writes",
        f"records read: {read}, and {delivered} delivered to a group",
        f"transactions: {', '.join(f'{transactions.count(each)} {each.value}' for each in TransactionOutcome)}",
        f"records read with read_committed: {transactions.read_count()}",
        f"longest pause of writes: {max(stats.pause_s.values(), default=0.0):.1f} s",
        f"anomalies: {len(anomalies)}",
        *(f"  {problem}" for problem in anomalies[:ANOMALIES_SHOWN_MAX]),
    ]
    return "\n".join(lines)
