"""Leadership goes back to the preferred replicas, where too much of a broker's has ended up elsewhere."""

from collections import Counter

from moldau.controller.elections import preferred_election
from moldau.controller.partition_change import active_brokers, settings_as_decided
from moldau.controller.state import ControllerState
from moldau.coordinator import Decision
from moldau.metadata.records import Record
from moldau.settings.effective import EffectiveSettings

ELECTIONS_MAX = 1000
"""In one decision: clients of all moved partitions look for their leaders at the same time."""


def balance_leaders(
    state: ControllerState, settings: EffectiveSettings, *, elections_max: int = ELECTIONS_MAX
) -> Decision[Record, bool]:
    """The reply says whether there may be more to move: decide again then."""
    decided = settings_as_decided(state, settings)
    active = active_brokers(state)
    elsewhere = state.index.led_elsewhere()
    preferred = {
        name: state.image.topics[name.topic].partitions[name.partition].replicas[0] for name in elsewhere
    }
    missing = Counter(preferred.values())
    allowed = decided.broker.leader_imbalance_per_broker_percentage
    records: list[Record] = []
    for name in elsewhere:
        broker_id = preferred[name]
        if missing[broker_id] * 100 <= allowed * state.index.count_preferring(broker_id):
            continue
        record = preferred_election(state, decided, name, active)
        if record is not None:
            if len(records) == elections_max:
                return Decision(records, True)
            records.append(record)
    return Decision(records, False)
