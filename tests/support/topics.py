"""Topics for tests, created with confluent-kafka's admin client."""

import os
import time
import uuid

from confluent_kafka.admin import AdminClient, NewTopic

from support.wire import WireClient, latest

QUIET = {"log_level": 0}


def wait_for_external_broker() -> None:
    """Waits for an external Kafka broker, which applies admin changes a little later. Moldau applies them at once."""
    if "MOLDAU_TEST_BOOTSTRAP" in os.environ:
        time.sleep(0.5)


def unique(prefix: str = "topic") -> str:
    return f"{prefix}-{uuid.uuid4().hex[:12]}"


class Topics:
    """Creates topics with unique names, so that tests can share a broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})

    def create(self, partitions: int = 1, **settings: object) -> str:
        """Creates a topic; settings have underscores for dots (`cleanup_policy="compact"`)."""
        name = unique()
        config = {key.replace("_", "."): str(value) for key, value in settings.items()}
        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config)
        self.admin.create_topics([new])[name].result(20)
        if "MOLDAU_TEST_BOOTSTRAP" in os.environ:
            self._wait_for_leaders(name, partitions)
        return name

    def _wait_for_leaders(self, name: str, partitions: int) -> None:
        # Kafka responds before the partitions of a new topic can be used. Moldau must not.
        deadline = time.monotonic() + 20
        with WireClient(self.bootstrap) as wire:
            while any(latest(wire, name, partition)["error_code"] for partition in range(partitions)):
                assert time.monotonic() < deadline, "the topic's partitions cannot be used"
