"""Leadership goes back to the preferred replicas, where too much of a broker's has ended up elsewhere."""

from collections import Counter

from moldau.controller.elections import build_preferred_election
from moldau.controller.partition_change_builder import active_brokers, speculative_settings
from moldau.controller.state import ControllerState
from moldau.coordinator import CoordinatorResult
from moldau.metadata.records import Record
from moldau.settings.effective import EffectiveSettings

ELECTIONS_MAX = 1000
"""In one decision: clients of all moved partitions look for their leaders at the same time."""


def balance_partition_leaders(
    state: ControllerState, settings: EffectiveSettings, *, elections_max: int = ELECTIONS_MAX
) -> CoordinatorResult[Record, bool]:
    """The reply says whether there may be more to move: decide again then."""
    decided = speculative_settings(state, settings)
    active = active_brokers(state)
    elsewhere = state.index.imbalanced_partitions()
    preferred = {
        name: state.image.topics[name.topic].partitions[name.partition].replicas[0] for name in elsewhere
    }
    missing = Counter(preferred.values())
    allowed = decided.broker.leader_imbalance_per_broker_percentage
    records: list[Record] = []
    for name in elsewhere:
        broker_id = preferred[name]
        if missing[broker_id] * 100 <= allowed * state.index.preferred_leader_count(broker_id):
            continue
        record = build_preferred_election(state, decided, name, active)
        if record is not None:
            if len(records) == elections_max:
                return CoordinatorResult(records, True)
            records.append(record)
    return CoordinatorResult(records, False)
