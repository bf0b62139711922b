"""Moldau's own consumer, alone and in groups: the behaviours that `make interop` runs against Apache Kafka."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.consuming import (
    BEHAVIOURS,
    Scene,
    a_kept_position_that_the_log_was_cut_below_is_noticed,
    resumes_over_a_restart,
)
from support.served import Served

QUICK_GROUPS = ("--group-initial-rebalance-delay-ms", "0")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    external = os.environ.get("MOLDAU_TEST_BOOTSTRAP")
    if external:
        yield Scene(external)
        return
    with Served(tmp_path_factory.mktemp("consumer") / "data", *QUICK_GROUPS) as served:
        yield Scene(served.bootstrap)


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_a_consumer_of_ours(scene: Scene, behaviour: str) -> None:
    asyncio.run(BEHAVIOURS[behaviour](scene))


def test_it_resumes_over_a_restart_of_the_broker(tmp_path: Path, only_moldau: None) -> None:
    with Served(tmp_path / "data", *QUICK_GROUPS) as served:

        def restart() -> None:
            served.stop()
            served.start()

        asyncio.run(resumes_over_a_restart(Scene(served.bootstrap), restart))


def test_it_notices_that_the_log_was_cut_below_its_position(tmp_path: Path, only_moldau: None) -> None:
    with Served(tmp_path / "data", *QUICK_GROUPS) as served:

        def restart() -> None:
            served.stop()
            served.start()

        asyncio.run(a_kept_position_that_the_log_was_cut_below_is_noticed(Scene(served.bootstrap), restart))
