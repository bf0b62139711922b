"""Runs the commands of a transcript on producers, a transaction coordinator and two partitions with delayed messages.

A starts [old]           (old: without TV2)
A sends a to p-0 [, delayed]
A commits [, delayed]    A aborts [, delayed]
A repeats the end        (on a new connection)
coordinator repeats markers
A gives up               (the producer crashes)
<message> arrives        (a delayed message, by its name in the output)
<message> arrives twice  (the message stays in the network)
hold <message>           (the next message whose name begins like this is delayed)
coordinator fails over   leader of p-0 fails over   60s pass   replicas lag   replicas catch up
consumers read           (with read_committed)

All messages that are not delayed are delivered in order before the next command, and then everything is replicated.
"""

from moldau.testing.simulation.checkers.history_transactions import LoggedMarker, TransactionHistory
from moldau.testing.simulation.schedules.coordinator import ScheduledCoordinator
from moldau.testing.simulation.schedules.leader import ScheduledLeader
from moldau.testing.simulation.schedules.network import InFlightMessage, ScheduledNetwork
from moldau.testing.simulation.schedules.producer import ScheduledProducer
from moldau.transactions.records import TransactionRecord
from moldau.transactions.transaction_metadata import TV0, TV2

PARTITIONS = (("p", 0), ("p", 1))


class DelayedTranscriptRunner:
    def __init__(self) -> None:
        self._network = ScheduledNetwork()
        self._coordinator = ScheduledCoordinator(self._network)
        self._history = TransactionHistory()
        self._leaders = {
            f"{topic}-{index}": ScheduledLeader((topic, index), self._network, self._coordinator)
            for topic, index in PARTITIONS
        }
        self._coordinator.leaders = {each.partition: each for each in self._leaders.values()}
        self._producers: dict[str, ScheduledProducer] = {}
        self._delayed: list[InFlightMessage] = []
        self._held_names: list[str] = []
        self._is_replicating = True
        self._coordinator_records = 0
        self._log_ends = dict.fromkeys(self._leaders, 0)
        self._lines: list[str] = []

    async def execute(self, command: str) -> list[str]:
        self._lines = []
        command, _, how = command.partition(", ")
        match command.split():
            case ["coordinator", "fails", "over"]:
                self._coordinator.fail_over()
                self._coordinator_records = min(self._coordinator_records, self._coordinator.end_offset)
            case ["coordinator", "repeats", "markers"]:
                self._coordinator.resend_markers()
            case ["leader", "of", name, "fails", "over"]:
                self._leaders[name].fail_over()
                self._log_ends[name] = min(self._log_ends[name], self._leaders[name].log.end_offset)
            case [seconds, "pass"]:
                self._coordinator.pass_time(int(seconds.removesuffix("s")) * 1_000)
            case ["replicas", "lag"]:
                self._is_replicating = False
            case ["replicas", "catch", "up"]:
                self._is_replicating = True
            case ["consumers", "read"]:
                self._read()
            case ["hold", *words]:
                self._held_names.append(" ".join(words))
            case [*words, "arrives"]:
                self._arrive(" ".join(words), duplicate=False)
            case [*words, "arrives", "twice"]:
                self._arrive(" ".join(words), duplicate=True)
            case [name, verb, *words]:
                self._run_producer(name, verb, words)
                if how == "delayed":
                    self._delay(self._network.in_flight[-1])
        self._settle()
        return self._lines

    def _run_producer(self, name: str, verb: str, words: list[str]) -> None:
        if verb == "starts":
            producer = self._producers[name] = ScheduledProducer(
                name,
                "t",
                self._network,
                self._coordinator,
                self._history,
                client_version=TV0 if "old" in words else TV2,
            )
            producer.on_response = lambda text: self._emit(name, text)
            producer.start()
            return
        producer = self._producers[name]
        match verb:
            case "sends":
                producer.send(self._leaders[words[2]], words[0])
            case "commits":
                producer.commit()
            case "aborts":
                producer.abort()
            case "repeats":
                producer.end_again()
            case "gives":
                producer.is_dead = True
            case _:
                raise ValueError(f"unknown command: {name} {verb}")

    def _delay(self, message: InFlightMessage) -> None:
        self._delayed.append(message)
        self._emit("network", f"delays {message.name}")

    def _arrive(self, name: str, *, duplicate: bool) -> None:
        message = next(each for each in self._delayed if each.name == name)
        if not duplicate:
            self._delayed.remove(message)
        self._network.deliver(message, duplicate=duplicate)

    def _settle(self) -> None:
        """Delivers all messages that are not delayed."""
        while True:
            self._emit_changes()
            if self._is_replicating:
                self._coordinator.replicate()
                for leader in self._leaders.values():
                    leader.replicate()
            self._emit_changes()
            message = next((each for each in self._network.in_flight if each not in self._delayed), None)
            if message is None:
                return
            held = next((each for each in self._held_names if message.name.startswith(each)), None)
            if held is None:
                self._network.deliver(message)
            else:
                self._held_names.remove(held)
                self._delay(message)

    # Output

    def _read(self) -> None:
        for name, leader in self._leaders.items():
            values = [value.decode() for _, value in leader.read_committed(1 << 20)]
            stable = f"stable up to {leader.last_stable_offset} of {leader.high_watermark}"
            self._emit("read", f"{name}: {', '.join(values) or 'nothing'} ({stable})")

    def _emit_changes(self) -> None:
        records = [record for batch in self._coordinator.log for record in batch]
        for record in records[self._coordinator_records :]:
            assert isinstance(record, TransactionRecord)
            metadata = record.metadata
            assert metadata is not None
            partitions = ", ".join(f"{topic}-{index}" for topic, index in sorted(metadata.partitions))
            identity = f"producer {metadata.producer_id} epoch {metadata.producer_epoch}"
            self._emit("state", f"{metadata.state.label} {identity}{': ' + partitions if partitions else ''}")
        self._coordinator_records = len(records)
        for name, leader in self._leaders.items():
            for entry in leader.content():
                if entry.offset < self._log_ends[name]:
                    continue
                if isinstance(entry, LoggedMarker):
                    what = "commit marker" if entry.is_commit else "abort marker"
                else:
                    what = entry.value.decode()
                self._emit(name, f"{entry.offset}: {what}")
            self._log_ends[name] = leader.log.end_offset

    def _emit(self, who: str, what: str) -> None:
        self._lines.append(f"{who:<8} {what}")
