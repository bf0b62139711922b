"""Moldau's own consumer, alone and in groups: the behaviours that `make interop` runs against Apache Kafka."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker_process import BrokerProcess
from support.consumer_behaviours import (
    CONSUMER_BEHAVIOURS,
    ConsumerFixture,
    a_group_resumes_after_a_broker_restart,
    a_position_beyond_a_truncation_is_detected,
)

QUICK_GROUPS = ("--group-initial-rebalance-delay-ms", "0")


@pytest.fixture(scope="module")
def fixture(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConsumerFixture]:
    external = os.environ.get("MOLDAU_TEST_BOOTSTRAP")
    if external:
        yield ConsumerFixture(external)
        return
    with BrokerProcess(tmp_path_factory.mktemp("consumer") / "data", *QUICK_GROUPS) as served:
        yield ConsumerFixture(served.bootstrap)


@pytest.mark.parametrize("behaviour", CONSUMER_BEHAVIOURS)
def test_a_consumer_of_ours(fixture: ConsumerFixture, behaviour: str) -> None:
    asyncio.run(CONSUMER_BEHAVIOURS[behaviour](fixture))


def test_it_resumes_over_a_restart_of_the_broker(tmp_path: Path, only_moldau: None) -> None:
    with BrokerProcess(tmp_path / "data", *QUICK_GROUPS) as served:

        def restart() -> None:
            served.stop()
            served.start()

        asyncio.run(a_group_resumes_after_a_broker_restart(ConsumerFixture(served.bootstrap), restart))


def test_it_detects_a_log_truncated_below_its_position(tmp_path: Path, only_moldau: None) -> None:
    with BrokerProcess(tmp_path / "data", *QUICK_GROUPS) as served:

        def restart() -> None:
            served.stop()
            served.start()

        asyncio.run(a_position_beyond_a_truncation_is_detected(ConsumerFixture(served.bootstrap), restart))
