"""Where the logs of live replicas end: what has to be known before a leader is elected uncleanly.

Answers take their time. Each holds for the life of the broker, and the epoch of the partition, that it was asked in:
a broker that began anew since may have another disk, and a partition that was led since has more records.
"""

from collections.abc import Mapping, Sequence

from moldau.controller.elections import LogEnds
from moldau.controller.index import PartitionName
from moldau.controller.state import ControllerState
from moldau.raft.messages import EpochEndOffset


class LogEndQuery:
    def __init__(self, state: ControllerState, wanted: Mapping[PartitionName, Sequence[int]]) -> None:
        """`wanted` are partitions, with the brokers whose replicas are asked."""
        self._candidates = wanted
        self._responses: dict[PartitionName, dict[int, EpochEndOffset]] = {name: {} for name in wanted}
        self._brokers = state.image.brokers
        self._topics = state.image.topics

    @property
    def is_empty(self) -> bool:
        return not self._candidates

    @property
    def is_complete(self) -> bool:
        return not self.pending()

    def pending(self) -> dict[int, list[PartitionName]]:
        """By broker, the partitions of which it has not said anything."""
        found: dict[int, list[PartitionName]] = {}
        for name, replicas in self._candidates.items():
            for broker_id in replicas:
                if broker_id not in self._responses[name]:
                    found.setdefault(broker_id, []).append(name)
        return found

    def record_response(self, broker_id: int, name: PartitionName, end: EpochEndOffset) -> None:
        self._responses[name][broker_id] = end

    def log_ends(self, state: ControllerState, *, complete_only: bool = False) -> LogEnds:
        """Of the partitions of which every answer still holds: who began anew after it answered may still have the
        longest log, and is to be asked again. `complete_only`: and of which every replica has answered."""
        return {
            name: ends
            for name, ends in self._responses.items()
            if self._is_same_epoch(state, name)
            and all(self._is_same_incarnation(state, broker_id) for broker_id in ends)
            and not (complete_only and len(ends) < len(self._candidates[name]))
        }

    def _is_same_incarnation(self, state: ControllerState, broker_id: int) -> bool:
        broker = state.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == self._brokers[broker_id].epoch

    def _is_same_epoch(self, state: ControllerState, name: PartitionName) -> bool:
        asked, now = self._topics[name.topic], state.image.topics.get(name.topic)
        return (
            now is not None
            and now.topic_id == asked.topic_id
            and now.partitions[name.partition].leader_epoch == asked.partitions[name.partition].leader_epoch
        )
