"""UpdateFeatures: which updates of features are allowed, and the error of the first that is not."""

from typing import Any

import pytest

from support.wire import API_VERSIONS, WireClient

UPDATE_FEATURES = 57
INVALID_UPDATE_VERSION = 95
METADATA_VERSION, ELR_VERSION = "metadata.version", "eligible.leader.replicas.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
VERSIONS = pytest.mark.parametrize("version", [0, 1, 2])

Update = tuple[str, int, int]
"""The name, the level and the upgrade type."""


def finalized(client: WireClient) -> dict[str, int]:
    software = {"client_software_name": "tests", "client_software_version": "1"}
    response = client.request(API_VERSIONS, 4, software)
    levels = {each["name"]: each["max_version_level"] for each in response["finalized_features"]}
    assert levels == {each["name"]: each["min_version_level"] for each in response["finalized_features"]}
    supported = {each["name"]: each for each in response["supported_features"]}
    for name, level in levels.items():
        assert supported[name]["min_version"] <= level <= supported[name]["max_version"]
    return levels


def update(client: WireClient, *updates: Update, version: int = 2, validate_only: bool = False) -> dict[str, Any]:
    """Sends the updates; version 0 has a flag for downgrades instead of upgrade types."""
    features: list[dict[str, Any]] = [
        {
            "feature": name,
            "max_version_level": level,
            "upgrade_type": upgrade_type,
            "allow_downgrade": upgrade_type != UPGRADE,
        }
        for name, level, upgrade_type in updates
    ]
    tree = {"timeout": 10_000, "feature_updates": features, "validate_only": validate_only}
    response = client.request(UPDATE_FEATURES, version, tree)
    assert response.pop("throttle_time") == 0
    return response


def refusal(client: WireClient, *updates: Update, version: int = 2, validate_only: bool = False) -> str:
    """Returns the reason for which the updates are refused."""
    before = finalized(client)
    response = update(client, *updates, version=version, validate_only=validate_only)
    assert response["error_code"] == INVALID_UPDATE_VERSION
    assert response.get("results", []) == []
    assert finalized(client) == before
    prefix = "The update failed for all features since the following feature had an error: "
    message: str = response["error_message"]
    assert message.startswith(prefix)
    return message.removeprefix(prefix)


def test_a_new_cluster_uses_eligible_leader_replicas(client: WireClient) -> None:
    levels = finalized(client)
    assert (levels[METADATA_VERSION], levels[ELR_VERSION]) == (30, 1)


@pytest.mark.parametrize("upgrade_type", [UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
@VERSIONS
def test_the_current_level_is_allowed(client: WireClient, version: int, upgrade_type: int) -> None:
    before = finalized(client)
    updates = [(METADATA_VERSION, 30, upgrade_type), (ELR_VERSION, 1, upgrade_type)]
    response = update(client, *updates, version=version)
    expected: dict[str, Any] = {"error_code": 0, "error_message": None}
    if version < 2:
        results = [{"feature": name, "error_code": 0, "error_message": "NONE"} for name, _, _ in updates]
        expected["results"] = results
    assert response == expected
    assert finalized(client) == before


@VERSIONS
def test_a_request_without_updates_succeeds(client: WireClient, version: int) -> None:
    response = update(client, version=version)
    assert (response["error_code"], response["error_message"], response.get("results", [])) == (0, None, [])


@VERSIONS
def test_an_unknown_feature_is_refused(client: WireClient, version: int) -> None:
    for name in ("no.such", ""):
        reason = f"Invalid update version 1 for feature {name}. Local controller 1 does not support this feature."
        assert refusal(client, (name, 1, UPGRADE), version=version) == reason
    reason = "Invalid update version 0 for feature no.such. Feature no.such not found."
    assert refusal(client, ("no.such", 0, UPGRADE), version=version) == reason


@pytest.mark.parametrize("level", [31, 32_767, 1, 0])
@VERSIONS
def test_a_level_out_of_range_is_refused(client: WireClient, version: int, level: int) -> None:
    reason = refusal(client, (METADATA_VERSION, level, UPGRADE), version=version)
    assert reason.startswith(f"Invalid update version {level} for feature {METADATA_VERSION}. Local controller 1 only")
    assert reason.endswith("-30")


@VERSIONS
def test_a_negative_level_is_refused(client: WireClient, version: int) -> None:
    reason = f"Invalid update version -1 for feature {METADATA_VERSION}. A feature version cannot be less than 0."
    assert refusal(client, (METADATA_VERSION, -1, UPGRADE), version=version) == reason


@pytest.mark.parametrize("level", [29, 7])
@pytest.mark.parametrize("upgrade_type", [UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE])
def test_the_metadata_version_cannot_be_downgraded(client: WireClient, level: int, upgrade_type: int) -> None:
    assert refusal(client, (METADATA_VERSION, level, upgrade_type))
    assert refusal(client, (METADATA_VERSION, level, upgrade_type), validate_only=True)


@VERSIONS
def test_a_downgrade_needs_another_upgrade_type(client: WireClient, version: int) -> None:
    assert refusal(client, (ELR_VERSION, 0, UPGRADE), version=version)


@pytest.mark.parametrize("upgrade_type", [0, 4, -1])
@pytest.mark.parametrize("version", [1, 2])
def test_an_undefined_upgrade_type_is_refused(client: WireClient, version: int, upgrade_type: int) -> None:
    reason = (
        f"Invalid update version 30 for feature {METADATA_VERSION}. "
        "The controller does not support the given upgrade type."
    )
    assert refusal(client, (METADATA_VERSION, 30, upgrade_type), version=version) == reason


def test_one_refused_update_refuses_all(client: WireClient) -> None:
    reason = refusal(client, (METADATA_VERSION, 30, UPGRADE), ("no.such", 1, UPGRADE), (ELR_VERSION, 1, UPGRADE))
    assert reason.startswith("Invalid update version 1 for feature no.such.")


@pytest.mark.parametrize("version", [1, 2])
def test_validate_only_reports_the_same(client: WireClient, version: int) -> None:
    response = update(client, (ELR_VERSION, 1, UPGRADE), version=version, validate_only=True)
    assert (response["error_code"], response["error_message"]) == (0, None)
    reason = refusal(client, ("no.such", 1, UPGRADE), version=version, validate_only=True)
    assert reason.endswith("Local controller 1 does not support this feature.")
