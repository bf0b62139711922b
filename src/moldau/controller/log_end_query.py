"""The log ends of live replicas, queried before an unclean election.

A response is valid only for the broker epoch and the leader epoch at the time of the query. A broker that has
registered since then may have another disk. A partition that has had a leader since then may have more records.
"""

from collections.abc import Mapping, Sequence

from moldau.controller.elections import LogEnds
from moldau.controller.partition_index import PartitionName
from moldau.controller.state import ControllerState
from moldau.raft.messages import EpochEndOffset


class LogEndQuery:
    def __init__(self, state: ControllerState, candidates: Mapping[PartitionName, Sequence[int]]) -> None:
        """`candidates` maps each partition to the brokers to query."""
        self._candidates = candidates
        self._responses: dict[PartitionName, dict[int, EpochEndOffset]] = {name: {} for name in candidates}
        self._brokers = state.image.brokers
        self._topics = state.image.topics

    @property
    def is_empty(self) -> bool:
        return not self._candidates

    @property
    def is_complete(self) -> bool:
        return not self.pending()

    def pending(self) -> dict[int, list[PartitionName]]:
        """Returns the partitions without a response, by broker id."""
        pending: dict[int, list[PartitionName]] = {}
        for name, replicas in self._candidates.items():
            for broker_id in replicas:
                if broker_id not in self._responses[name]:
                    pending.setdefault(broker_id, []).append(name)
        return pending

    def record_response(self, broker_id: int, name: PartitionName, end: EpochEndOffset) -> None:
        self._responses[name][broker_id] = end

    def log_ends(self, state: ControllerState, *, complete_only: bool = False) -> LogEnds:
        """Returns the log ends of the partitions whose responses are all still valid.

        A partition is omitted if one of the brokers has registered again, because that broker may still have the
        longest log. `complete_only` also omits partitions for which a live broker has not responded. Brokers that were
        fenced during the query are no longer candidates.
        """
        return {
            name: ends
            for name, ends in self._responses.items()
            if self._is_same_epoch(state, name)
            and all(self._is_same_incarnation(state, broker_id) for broker_id in ends)
            and not (complete_only and any(each not in ends for each in self._live_candidates(state, name)))
        }

    def _live_candidates(self, state: ControllerState, name: PartitionName) -> list[int]:
        brokers = state.image.brokers
        return [each for each in self._candidates[name] if each in brokers and brokers[each].is_active]

    def _is_same_incarnation(self, state: ControllerState, broker_id: int) -> bool:
        broker = state.image.brokers.get(broker_id)
        return broker is not None and broker.epoch == self._brokers[broker_id].epoch

    def _is_same_epoch(self, state: ControllerState, name: PartitionName) -> bool:
        queried, current = self._topics[name.topic], state.image.topics.get(name.topic)
        return (
            current is not None
            and current.topic_id == queried.topic_id
            and current.partitions[name.partition].leader_epoch == queried.partitions[name.partition].leader_epoch
        )
