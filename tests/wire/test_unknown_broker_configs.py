"""Broker configs with names that the broker does not know: accepted, stored and described as sensitive."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from broker_under_test import Broker

from support.topics import unique
from support.wire import DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, WireClient, wait_until

StartNode = Callable[[Mapping[str, str]], Broker]

ALTER_CONFIGS = 33
TOPIC, BROKER = 2, 4
NODE, ALL = "1", ""
"""The names of the broker resources: one broker, and the defaults of all brokers."""
SET, DELETE, APPEND, SUBTRACT = range(4)
NONE, INVALID_CONFIG, INVALID_REQUEST = 0, 40, 42
DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER = 2, 3


class Configs:
    """The broker configs of a node."""

    def __init__(self, client: WireClient) -> None:
        self.client = client

    def alter(
        self, resource: str, *changes: tuple[str, int, str | None], validate_only: bool = False, version: int = 1
    ) -> tuple[int, str | None]:
        """Returns the error code and the error message."""
        configs = [{"name": name, "config_operation": operation, "value": value} for name, operation, value in changes]
        alteration = {"resource_type": BROKER, "resource_name": resource, "configs": configs}
        tree = {"resources": [alteration], "validate_only": validate_only}
        (response,) = self.client.request(INCREMENTAL_ALTER_CONFIGS, version, tree)["responses"]
        return response["error_code"], response["error_message"]

    def replace(self, resource: str, configs: Mapping[str, str]) -> int:
        listed = [{"name": name, "value": value} for name, value in configs.items()]
        alteration = {"resource_type": BROKER, "resource_name": resource, "configs": listed}
        tree = {"resources": [alteration], "validate_only": False}
        code: int = self.client.request(ALTER_CONFIGS, 2, tree)["responses"][0]["error_code"]
        return code

    def describe(self, resource: str, name: str | None = None, version: int = 4) -> dict[str, dict[str, Any]]:
        """Returns the entries by name; all entries if `name` is None."""
        wanted = {
            "resource_type": BROKER,
            "resource_name": resource,
            "configuration_keys": None if name is None else [name],
        }
        tree = {"resources": [wanted], "include_synonyms": True, "include_documentation": True}
        (result,) = self.client.request(DESCRIBE_CONFIGS, version, tree)["results"]
        assert result["error_code"] == NONE
        return {each["name"]: each for each in result["configs"]}


@pytest.fixture
def configs(client: WireClient) -> Configs:
    return Configs(client)


@pytest.fixture
def name(configs: Configs) -> Iterator[str]:
    """An unknown name, which is deleted after the test."""
    chosen = unique("no.such.config")
    yield chosen
    for resource in (NODE, ALL):
        assert configs.alter(resource, (chosen, DELETE, None)) == (NONE, None)


def sensitive(name: str, *sources: int) -> dict[str, Any]:
    return {
        "name": name,
        "value": None,
        "read_only": True,
        "config_source": sources[0],
        "is_sensitive": True,
        "synonyms": [{"name": name, "value": None, "source": source} for source in sources],
        "config_type": 0,
        "documentation": None,
    }


@pytest.mark.parametrize(
    ("resource", "source"), [(NODE, DYNAMIC_BROKER), (ALL, DYNAMIC_DEFAULT_BROKER)], ids=["one broker", "all brokers"]
)
@pytest.mark.parametrize("value", ["secret", ""])
def test_an_unknown_config_is_stored_and_its_value_is_not_shown(
    configs: Configs, name: str, resource: str, source: int, value: str
) -> None:
    assert configs.alter(resource, (name, SET, value)) == (NONE, None)
    wait_until(lambda: name in configs.describe(resource), "the config is not described")
    assert configs.describe(resource)[name] == sensitive(name, source)
    assert configs.describe(resource, name) == {name: sensitive(name, source)}


def test_older_versions_describe_it_as_sensitive_too(configs: Configs, name: str) -> None:
    assert configs.alter(NODE, (name, SET, "x"), version=0) == (NONE, None)
    wait_until(lambda: name in configs.describe(NODE), "the config is not described")
    entry = configs.describe(NODE, version=1)[name]
    assert (entry["value"], entry["is_sensitive"], entry["read_only"]) == (None, True, True)


def test_both_sources_are_synonyms(configs: Configs, name: str) -> None:
    configs.alter(ALL, (name, SET, "default"))
    wait_until(lambda: name in configs.describe(NODE), "the default is not described")
    assert configs.describe(NODE)[name] == sensitive(name, DYNAMIC_DEFAULT_BROKER)
    configs.alter(NODE, (name, SET, "own"))
    both = sensitive(name, DYNAMIC_BROKER, DYNAMIC_DEFAULT_BROKER)
    wait_until(lambda: configs.describe(NODE)[name] == both, "the broker's own config is not described")
    assert configs.describe(ALL)[name] == sensitive(name, DYNAMIC_DEFAULT_BROKER)


def test_alter_configs_replaces_unknown_configs(configs: Configs, name: str) -> None:
    configs.alter(NODE, (name, SET, "x"))
    wait_until(lambda: name in configs.describe(NODE), "the config is not described")
    assert configs.replace(NODE, {f"{name}.other": "x"}) == NONE
    wait_until(lambda: f"{name}.other" in configs.describe(NODE), "the other config is not described")
    assert name not in configs.describe(NODE)
    assert configs.replace(NODE, {}) == NONE
    wait_until(lambda: f"{name}.other" not in configs.describe(NODE), "the config was not deleted")


def test_unknown_configs_do_not_hide_errors_of_known_ones(configs: Configs, name: str) -> None:
    code, message = configs.alter(NODE, (name, SET, "x"), ("log.retention.ms", SET, "soon"))
    assert (code, message) == (
        INVALID_REQUEST,
        "Invalid value soon for configuration log.retention.ms: Not a number of type LONG",
    )
    code, message = configs.alter(NODE, (name, SET, "x"), ("num.partitions", SET, "3"))
    assert code == INVALID_REQUEST
    assert message is not None
    assert message.startswith("Cannot update these configs dynamically: ")
    assert name not in configs.describe(NODE)


def test_validate_only_stores_nothing(configs: Configs, name: str) -> None:
    assert configs.alter(NODE, (name, SET, "x"), validate_only=True) == (NONE, None)
    assert name not in configs.describe(NODE)


@pytest.mark.parametrize(("operation", "verb"), [(APPEND, "append"), (SUBTRACT, "subtract")])
def test_only_lists_can_be_appended_to(configs: Configs, name: str, operation: int, verb: str) -> None:
    assert configs.alter(NODE, (name, operation, "x")) == (INVALID_CONFIG, f"Unknown config name: {name}")
    refused = f"Config value {verb} is not allowed for config key: log.retention.ms"
    assert configs.alter(ALL, ("log.retention.ms", operation, "5")) == (INVALID_CONFIG, refused)


def test_a_null_value_is_rejected(configs: Configs, name: str) -> None:
    assert configs.alter(NODE, (name, SET, None)) == (INVALID_REQUEST, f"Null value not supported for : {name}")


def test_unknown_topic_configs_are_still_rejected(configs: Configs, topics: Any) -> None:
    change = {"name": "no.such.config", "config_operation": SET, "value": "x"}
    alteration = {"resource_type": TOPIC, "resource_name": topics.create(), "configs": [change]}
    tree = {"resources": [alteration], "validate_only": False}
    (response,) = configs.client.request(INCREMENTAL_ALTER_CONFIGS, 1, tree)["responses"]
    assert (response["error_code"], response["error_message"]) == (
        INVALID_CONFIG,
        "Unknown topic config name: no.such.config",
    )


def test_unknown_configs_survive_a_restart(start_node: StartNode) -> None:
    node = start_node({})
    with WireClient(node.bootstrap) as client:
        configs = Configs(client)
        for resource in (NODE, ALL):
            assert configs.alter(resource, (f"for.{resource}", SET, "x")) == (NONE, None)
    node.stop()
    node.start()
    with WireClient(node.bootstrap) as client:
        entries = Configs(client).describe(NODE)
        assert entries[f"for.{NODE}"] == sensitive(f"for.{NODE}", DYNAMIC_BROKER)
        assert entries[f"for.{ALL}"] == sensitive(f"for.{ALL}", DYNAMIC_DEFAULT_BROKER)
