"""A broker whose controller cannot append: it logs the reason and retries."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest

from moldau.broker_lifecycle.manager import BrokerLifecycleManager
from moldau.controller.requests import BrokerHeartbeat, BrokerHeartbeatReply, BrokerRegistrationRequest
from moldau.errors import MoldauError, NotControllerError, StorageError
from moldau.observe.logging import FIELDS
from moldau.platform.system import system_platform
from moldau.settings.broker import BrokerSettings


class FailingGateway:
    """Accepts the registration, fails as many heartbeats as there are errors, and accepts the others."""

    def __init__(self, failures: Sequence[MoldauError]) -> None:
        self._failures = list(failures)

    async def register_broker(self, broker: BrokerRegistrationRequest) -> int:
        return 7

    async def heartbeat(self, heartbeat: BrokerHeartbeat, timeout_ms: int | None = None) -> BrokerHeartbeatReply:
        if self._failures:
            raise self._failures.pop(0)
        return BrokerHeartbeatReply(is_caught_up=True, is_fenced=False, should_shut_down=False)


async def until_active(failures: Sequence[MoldauError]) -> None:
    lifecycle = BrokerLifecycleManager(
        1,
        UUID(int=1),
        FailingGateway(failures),
        BrokerSettings(broker_heartbeat_interval_ms=1),
        system_platform().clock,
        cluster_id="test",
        endpoints=(),
    )
    await lifecycle.start()
    await lifecycle.wait_until_active()
    await lifecycle.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The logged reasons."""
    return [getattr(each, FIELDS)["reason"] for each in caplog.records if each.levelname == "WARNING"]


def test_a_full_disk_of_the_controller_is_logged_once_and_retried(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="moldau"):
        asyncio.run(until_active([StorageError("no space left")] * 3))
    assert warnings(caplog) == ["no space left"]


def test_each_different_failure_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="moldau"):
        asyncio.run(until_active([StorageError("a"), StorageError("b"), StorageError("b")]))
    assert warnings(caplog) == ["a", "b"]


def test_a_moving_controller_logs_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG", logger="moldau"):
        asyncio.run(until_active([NotControllerError("it is elsewhere")] * 3))
    assert warnings(caplog) == []
