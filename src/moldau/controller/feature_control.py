"""Decisions on the levels of features (Kafka's FeatureControlManager)."""

from collections.abc import Mapping, Sequence

from moldau.controller.configuration_control import make_min_isr_cluster_wide
from moldau.controller.features import ELR_VERSION, SUPPORTED_FEATURES
from moldau.controller.requests import FeatureUpdate, UpgradeType
from moldau.controller.state import ControllerState, check_batch_size
from moldau.coordinator import CoordinatorResult
from moldau.errors import InvalidUpdateVersionError
from moldau.metadata.records import FeatureLevelRecord, Record

UNSUPPORTED = (0, 0)


def set_highest_levels(state: ControllerState) -> CoordinatorResult[Record, None]:
    """Sets the highest level of every feature. Used when the cluster is created."""
    return CoordinatorResult(
        _level_records(state, {name: high for name, (_, high) in SUPPORTED_FEATURES.items()}), None
    )


def update_features(
    state: ControllerState,
    updates: Sequence[FeatureUpdate],
    *,
    validate_only: bool,
    supported: Mapping[str, tuple[int, int]] = SUPPORTED_FEATURES,
) -> CoordinatorResult[Record, None]:
    """Changes the levels of features. Raises InvalidUpdateVersionError if one of the updates is not allowed; then no
    level changes. `supported` are the levels that this controller supports."""
    # As in Kafka, the last update counts if a feature is updated more than once.
    last_updates = {update.name: update for update in updates}
    for update in last_updates.values():
        reason = _reason_not_allowed(state, update, supported)
        if reason is not None:
            raise InvalidUpdateVersionError(
                "The update failed for all features since the following feature had an error: "
                f"Invalid update version {update.level} for feature {update.name}. {reason}"
            )
    records = _level_records(state, {name: update.level for name, update in last_updates.items()})
    return CoordinatorResult([] if validate_only else check_batch_size(records), None)


def _reason_not_allowed(
    state: ControllerState, update: FeatureUpdate, supported: Mapping[str, tuple[int, int]]
) -> str | None:
    name, level, upgrade_type = update
    if upgrade_type not in frozenset(UpgradeType):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    controller = f"Local controller {state.settings.static.node_id}"
    ranges = {controller: supported.get(name, UNSUPPORTED)}
    for broker_id, broker in sorted(state.image.brokers.items()):
        ranges[f"Broker {broker_id}"] = broker.supported_levels(name)
    for node, (low, high) in ranges.items():
        if not low <= level <= high:
            is_unknown = (low, high) == UNSUPPORTED
            return (
                f"{node} does not support this feature."
                if is_unknown
                else f"{node} only supports versions {low}-{high}"
            )
    if name not in supported:
        return f"Feature {name} not found."
    current = state.image.features.get(name, 0)
    if level < current and upgrade_type == UpgradeType.UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe "
            "downgrade."
        )
    if level > current and upgrade_type != UpgradeType.UPGRADE:
        return "Can't downgrade to a newer version."
    return None


def _level_records(state: ControllerState, levels: Mapping[str, int]) -> list[Record]:
    """Returns the records of the levels that change, and of the config changes that eligible leader replicas need."""
    current = state.image.features
    records: list[Record] = [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in levels.items()
        if current.get(name, 0) != level
    ]
    if levels.get(ELR_VERSION, 0) > current.get(ELR_VERSION, 0):
        records += make_min_isr_cluster_wide(state)
    return records
