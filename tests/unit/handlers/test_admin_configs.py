"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources in every version."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.errors import NotControllerError
from moldau.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
)
from moldau.wire.api_keys import ApiKey
from support.admin_broker import AdminBroker, broker_image, image_of, versions_of

DESCRIBE, ALTER = ApiKey.DESCRIBE_CONFIGS, ApiKey.ALTER_CONFIGS
INCREMENT, LIST = ApiKey.INCREMENTAL_ALTER_CONFIGS, ApiKey.LIST_CONFIG_RESOURCES

INVALID_REQUEST = 42
SET, REMOVE, APPEND, SUBTRACT = range(4)


def resource(kind: int, name: str, keys: list[str] | None = None) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, "configuration_keys": keys}


def describe(broker: AdminBroker, *resources: dict[str, Any], version: int = 4, **more: Any) -> list[Any]:
    request = {"include_synonyms": False, "include_documentation": False, **more}
    results: list[Any] = broker.send(DESCRIBE, version, resources=list(resources), **request).results
    return results


def values(result: Any) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in result.configs}


@pytest.fixture
def broker() -> AdminBroker:
    configs = {
        ConfigResource(TOPIC_RESOURCE, "a"): {"retention.ms": "77"},
        ConfigResource(BROKER_RESOURCE, ""): {"log.retention.ms": "99"},
    }
    return AdminBroker(image_of({"a": 1, "b": 1}, configs=configs))


@pytest.mark.parametrize("version", versions_of(DESCRIBE))
def test_topic_settings_are_described_with_their_sources(broker: AdminBroker, version: int) -> None:
    (result,) = describe(broker, resource(TOPIC_RESOURCE, "a"), version=version, include_synonyms=True)
    assert (result.error_code, result.resource_type, result.resource_name) == (0, TOPIC_RESOURCE, "a")
    entries = {entry.name: entry for entry in result.configs}
    assert len(entries) > 5
    retention = entries["retention.ms"]
    assert (retention.value, retention.config_source, retention.read_only) == ("77", 1, False)
    assert retention.is_sensitive is False
    assert [(each.name, each.value, each.source) for each in retention.synonyms][:2] == [
        ("retention.ms", "77", 1),
        ("log.retention.ms", "99", 3),
    ]
    assert entries["cleanup.policy"].config_source == 5
    if version >= 3:
        assert (retention.config_type, retention.documentation) == (5, None)
        assert entries["cleanup.policy"].config_type == 7


def test_synonyms_and_documentation_are_included_on_request(broker: AdminBroker) -> None:
    resources = resource(TOPIC_RESOURCE, "a", ["retention.ms"])
    (plain,) = describe(broker, resources)
    assert (plain.configs[0].synonyms, plain.configs[0].documentation) == ([], None)
    (documented,) = describe(broker, resources, include_documentation=True)
    assert "records" in documented.configs[0].documentation


@pytest.mark.parametrize(("keys", "described"), [(["retention.ms", "nope"], ["retention.ms"]), (["nope"], [])])
def test_keys_select_the_described_settings(broker: AdminBroker, keys: list[str], described: list[str]) -> None:
    (result,) = describe(broker, resource(TOPIC_RESOURCE, "a", keys))
    assert result.error_code == 0
    assert list(values(result)) == described


@pytest.mark.parametrize("keys", [None, []])
def test_no_keys_describe_all_settings(broker: AdminBroker, keys: list[str] | None) -> None:
    (result,) = describe(broker, resource(TOPIC_RESOURCE, "b", keys))
    assert values(result)["retention.ms"] == "99"
    assert len(result.configs) > 5


def test_a_broker_is_described_by_id_and_the_defaults_by_the_empty_name(broker: AdminBroker) -> None:
    own, everybody = describe(broker, resource(BROKER_RESOURCE, "1"), resource(BROKER_RESOURCE, ""))
    entries = {entry.name: entry for entry in own.configs}
    assert (entries["log.retention.ms"].value, entries["log.retention.ms"].config_source) == ("99", 3)
    assert entries["log.retention.ms"].read_only is False
    assert (entries["node.id"].value, entries["node.id"].read_only) == ("1", True)
    assert values(everybody) == {"log.retention.ms": "99"}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC_RESOURCE, "gone", 3),
        (TOPIC_RESOURCE, "sp ace", 17),
        (TOPIC_RESOURCE, "", 17),
        (BROKER_RESOURCE, "77", INVALID_REQUEST),
        (BROKER_RESOURCE, "x", INVALID_REQUEST),
        (BROKER_RESOURCE, "²", INVALID_REQUEST),
        (BROKER_LOGGER_RESOURCE, "", INVALID_REQUEST),
        (BROKER_LOGGER_RESOURCE, "77", INVALID_REQUEST),
        (CLIENT_METRICS_RESOURCE, "", INVALID_REQUEST),
        (GROUP_RESOURCE, "", INVALID_REQUEST),
    ],
)
def test_an_invalid_resource_does_not_fail_the_others(broker: AdminBroker, kind: int, name: str, code: int) -> None:
    bad, good = describe(broker, resource(kind, name), resource(TOPIC_RESOURCE, "a", ["retention.ms"]))
    assert (bad.error_code, bad.configs, bad.resource_name) == (code, [], name)
    assert bad.error_message
    assert values(good) == {"retention.ms": "77"}


@pytest.mark.parametrize("kind", [0, 1, 3, 9, 64, -1])
def test_an_unknown_resource_type_fails_the_whole_request(broker: AdminBroker, kind: int) -> None:
    results = describe(broker, resource(TOPIC_RESOURCE, "a"), resource(kind, "x"))
    assert [(each.error_code, each.configs) for each in results] == [(INVALID_REQUEST, [])] * 2


def test_a_duplicate_resource_is_described_once(broker: AdminBroker) -> None:
    assert len(describe(broker, *[resource(TOPIC_RESOURCE, "a")] * 1000)) == 1


def test_groups_and_subscriptions_are_described_as_set() -> None:
    group = ConfigResource(GROUP_RESOURCE, "g")
    broker = AdminBroker(image_of({}, configs={group: {"consumer.session.timeout.ms": "50000"}}))
    set_, unset = describe(
        broker, resource(GROUP_RESOURCE, "g"), resource(CLIENT_METRICS_RESOURCE, "s"), include_synonyms=True
    )
    assert values(set_) == {"consumer.session.timeout.ms": "50000"}
    assert set_.configs[0].config_source == 8
    assert (unset.error_code, unset.configs) == (0, [])


def increment(
    broker: AdminBroker,
    *resources: tuple[int, str, list[tuple[str, int, str | None]]],
    version: int = 1,
    validate_only: bool = False,
) -> list[tuple[Any, ...]]:
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [
                {"name": key, "config_operation": operation, "value": value} for key, operation, value in changes
            ],
        }
        for kind, name, changes in resources
    ]
    response = broker.send(INCREMENT, version, resources=resources, validate_only=validate_only)
    return [
        (each.resource_type, each.resource_name, each.error_code, each.error_message) for each in response.responses
    ]


def alter(
    broker: AdminBroker,
    *resources: tuple[int, str, list[tuple[str, str | None]]],
    version: int = 2,
    validate_only: bool = False,
) -> list[tuple[Any, ...]]:
    resources = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "value": value} for key, value in changes],
        }
        for kind, name, changes in resources
    ]
    response = broker.send(ALTER, version, resources=resources, validate_only=validate_only)
    return [(each.resource_name, each.error_code, each.error_message) for each in response.responses]


def set_for_topic(broker: AdminBroker, name: str) -> dict[str, str]:
    return dict(broker.metadata.image.config(ConfigResource(TOPIC_RESOURCE, name)))


@pytest.mark.parametrize("version", versions_of(INCREMENT))
def test_incremental_changes_keep_other_settings(broker: AdminBroker, version: int) -> None:
    changes: list[tuple[str, int, str | None]] = [("segment.ms", SET, "5000"), ("cleanup.policy", APPEND, "compact")]
    response = increment(broker, (TOPIC_RESOURCE, "a", changes), version=version)
    assert response == [(TOPIC_RESOURCE, "a", 0, None)]
    assert set_for_topic(broker, "a") == {
        "retention.ms": "77",
        "segment.ms": "5000",
        "cleanup.policy": "delete,compact",
    }
    increment(broker, (TOPIC_RESOURCE, "a", [("cleanup.policy", SUBTRACT, "delete")]), version=version)
    increment(broker, (TOPIC_RESOURCE, "a", [("retention.ms", REMOVE, None)]), version=version)
    assert set_for_topic(broker, "a") == {"segment.ms": "5000", "cleanup.policy": "compact"}


@pytest.mark.parametrize("version", versions_of(ALTER))
def test_alter_configs_replaces_all_settings(broker: AdminBroker, version: int) -> None:
    response = alter(broker, (TOPIC_RESOURCE, "a", [("segment.ms", "5000")]), version=version)
    assert response == [("a", 0, None)]
    assert set_for_topic(broker, "a") == {"segment.ms": "5000"}
    alter(broker, (TOPIC_RESOURCE, "a", []), version=version)
    assert set_for_topic(broker, "a") == {}


def test_validate_only_changes_nothing(broker: AdminBroker) -> None:
    good, bad = ((TOPIC_RESOURCE, "a", [("retention.ms", SET, "1")]), (TOPIC_RESOURCE, "b", [("nope", SET, "1")]))
    assert [each[2] for each in increment(broker, good, bad, validate_only=True)] == [0, 40]
    assert alter(broker, (TOPIC_RESOURCE, "a", []), validate_only=True) == [("a", 0, None)]
    assert set_for_topic(broker, "a") == {"retention.ms": "77"}


def test_altered_settings_are_described(broker: AdminBroker) -> None:
    increment(broker, (BROKER_RESOURCE, "1", [("log.retention.ms", SET, "5")]))
    own, topic = describe(
        broker, resource(BROKER_RESOURCE, "1", ["log.retention.ms"]), resource(TOPIC_RESOURCE, "b", ["retention.ms"])
    )
    assert (own.configs[0].value, own.configs[0].config_source) == ("5", 2)
    assert (topic.configs[0].value, topic.configs[0].config_source) == ("5", 2)


@pytest.mark.parametrize(
    ("kind", "name", "change", "code"),
    [
        (TOPIC_RESOURCE, "gone", ("retention.ms", SET, "1"), 3),
        (TOPIC_RESOURCE, "sp ace", ("retention.ms", SET, "1"), 17),
        (TOPIC_RESOURCE, "", ("retention.ms", SET, "1"), INVALID_REQUEST),
        (TOPIC_RESOURCE, "a", ("nope", SET, "1"), 40),
        (TOPIC_RESOURCE, "a", ("retention.ms", SET, "x"), 40),
        (TOPIC_RESOURCE, "a", ("retention.ms", SET, None), INVALID_REQUEST),
        (TOPIC_RESOURCE, "a", ("retention.ms", APPEND, "1"), 40),
        (TOPIC_RESOURCE, "a", ("retention.ms", 4, "1"), INVALID_REQUEST),
        (TOPIC_RESOURCE, "a", ("retention.ms", -1, "1"), INVALID_REQUEST),
        (BROKER_RESOURCE, "77", ("log.retention.ms", SET, "1"), INVALID_REQUEST),
        (BROKER_RESOURCE, "x", ("log.retention.ms", SET, "1"), INVALID_REQUEST),
        (BROKER_RESOURCE, "1", ("node.id", SET, "2"), INVALID_REQUEST),
        (BROKER_RESOURCE, "", ("log.retention.ms", SET, "x"), INVALID_REQUEST),
        (BROKER_LOGGER_RESOURCE, "77", ("root", SET, "INFO"), INVALID_REQUEST),
        (BROKER_LOGGER_RESOURCE, "1", ("nobody", SET, "INFO"), 40),
        (BROKER_LOGGER_RESOURCE, "1", ("root", SET, "LOUD"), 40),
        (BROKER_LOGGER_RESOURCE, "1", ("root", SET, None), 40),
        (BROKER_LOGGER_RESOURCE, "1", ("root", REMOVE, None), INVALID_REQUEST),
        (BROKER_LOGGER_RESOURCE, "1", ("root", APPEND, "INFO"), INVALID_REQUEST),
        (3, "x", ("retention.ms", SET, "1"), INVALID_REQUEST),
        (0, "x", ("retention.ms", SET, "1"), INVALID_REQUEST),
    ],
)
def test_an_invalid_change_is_rejected_and_the_others_are_made(
    broker: AdminBroker, kind: int, name: str, change: tuple[str, int, str | None], code: int
) -> None:
    response = increment(broker, (kind, name, [change]), (TOPIC_RESOURCE, "b", [("retention.ms", SET, "5")]))
    assert response[0][:3] == (kind, name, code)
    assert response[0][3]
    assert response[1] == (TOPIC_RESOURCE, "b", 0, None)
    assert set_for_topic(broker, "b") == {"retention.ms": "5"}
    assert set_for_topic(broker, "a") == {"retention.ms": "77"}


def test_duplicate_resources_and_keys_are_rejected(broker: AdminBroker) -> None:
    first, second = [("retention.ms", SET, "1")], [("segment.ms", SET, "5000")]
    response = increment(broker, (TOPIC_RESOURCE, "a", first), (TOPIC_RESOURCE, "a", second))
    assert response == [(TOPIC_RESOURCE, "a", INVALID_REQUEST, "Each resource must appear at most once.")] * 2
    response = increment(broker, (TOPIC_RESOURCE, "a", [*first, *first]))
    assert response == [(TOPIC_RESOURCE, "a", INVALID_REQUEST, "Error due to duplicate config keys")]
    twice = (TOPIC_RESOURCE, "a", [("retention.ms", "1")])
    assert [each[1] for each in alter(broker, twice, twice)] == [INVALID_REQUEST, INVALID_REQUEST]
    assert set_for_topic(broker, "a") == {"retention.ms": "77"}


def test_a_failing_controller_fails_only_its_resources(broker: AdminBroker, quiet_logger: str) -> None:
    broker.controller.refuses = NotControllerError("moved")
    response = increment(
        broker,
        (TOPIC_RESOURCE, "a", [("retention.ms", SET, "1")]),
        (BROKER_LOGGER_RESOURCE, "1", [(quiet_logger, SET, "DEBUG")]),
    )
    assert [each[2] for each in response] == [41, 0]


@pytest.fixture
def quiet_logger() -> Iterator[str]:
    name = "moldau.test_of_loggers"
    logger = logging.getLogger(name)
    logger.setLevel(logging.ERROR)
    yield name
    logger.setLevel(logging.NOTSET)


def test_loggers_are_described_and_changed(broker: AdminBroker, quiet_logger: str) -> None:
    (before,) = describe(broker, resource(BROKER_LOGGER_RESOURCE, "1"))
    assert values(before)[quiet_logger] == "ERROR"
    assert "root" in values(before)
    assert before.configs[0].config_source == 6
    change = (BROKER_LOGGER_RESOURCE, "1", [(quiet_logger, SET, "DEBUG")])
    assert increment(broker, change, validate_only=True)[0][2] == 0
    assert logging.getLogger(quiet_logger).level == logging.ERROR
    assert increment(broker, change) == [(BROKER_LOGGER_RESOURCE, "1", 0, None)]
    assert logging.getLogger(quiet_logger).level == logging.DEBUG
    increment(broker, (BROKER_LOGGER_RESOURCE, "1", [(quiet_logger, REMOVE, None)]))
    assert logging.getLogger(quiet_logger).level == logging.NOTSET


def test_one_bad_level_changes_no_logger(broker: AdminBroker, quiet_logger: str) -> None:
    changes: list[tuple[str, int, str | None]] = [(quiet_logger, SET, "DEBUG"), ("nobody", SET, "DEBUG")]
    assert increment(broker, (BROKER_LOGGER_RESOURCE, "1", changes))[0][2] == 40
    assert logging.getLogger(quiet_logger).level == logging.ERROR


def test_loggers_cannot_be_changed_with_alter_configs(broker: AdminBroker) -> None:
    response = alter(broker, (BROKER_LOGGER_RESOURCE, "1", [("root", "INFO")]))
    assert response == [("1", INVALID_REQUEST, "Unknown resource type 8")]


def listed(broker: AdminBroker, types: list[int], version: int = 1) -> list[tuple[int, str]]:
    response = broker.send(LIST, version, resource_types=types)
    assert response.error_code == 0
    return [(each.get("resource_type", -1), each.resource_name) for each in response.config_resources]


@pytest.fixture
def listing() -> AdminBroker:
    configs = {
        ConfigResource(CLIENT_METRICS_RESOURCE, "s"): {"interval.ms": "1000"},
        ConfigResource(GROUP_RESOURCE, "g"): {"consumer.session.timeout.ms": "50000"},
        ConfigResource(BROKER_RESOURCE, ""): {"log.retention.ms": "99"},
    }
    return AdminBroker(image_of({"b": 1, "a": 1}, brokers=[broker_image(2)], configs=configs))


def test_version_0_lists_client_metrics_subscriptions_only(listing: AdminBroker) -> None:
    assert listed(listing, [], version=0) == [(-1, "s")]


def test_resources_are_listed_by_type(listing: AdminBroker) -> None:
    assert listed(listing, [TOPIC_RESOURCE]) == [(2, "a"), (2, "b")]
    assert listed(listing, [GROUP_RESOURCE, BROKER_RESOURCE]) == [(4, "1"), (4, "2"), (32, "g")]
    assert listed(listing, []) == [(2, "a"), (2, "b"), (4, "1"), (4, "2"), (8, "1"), (8, "2"), (16, "s"), (32, "g")]


@pytest.mark.parametrize("types", [[0], [9], [TOPIC_RESOURCE, 9]])
def test_an_unknown_resource_type_cannot_be_listed(listing: AdminBroker, types: list[int]) -> None:
    response = listing.send(LIST, 1, resource_types=types)
    assert (response.error_code, response.config_resources) == (35, [])
