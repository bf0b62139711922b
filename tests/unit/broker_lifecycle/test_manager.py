"""The driver of a broker's lifecycle: failed heartbeats are logged and retried, and a stop ends the lease."""

import asyncio
from collections.abc import Callable, Sequence
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
        self.heartbeats = 0

    async def register_broker(self, broker: BrokerRegistrationRequest) -> int:
        return 7

    async def heartbeat(self, heartbeat: BrokerHeartbeat, timeout_ms: int | None = None) -> BrokerHeartbeatReply:
        self.heartbeats += 1
        if self._failures:
            raise self._failures.pop(0)
        return BrokerHeartbeatReply(is_caught_up=True, is_fenced=False, should_shut_down=False)


def lifecycle_manager(gateway: FailingGateway, on_lease_expired: Callable[[], None] | None) -> BrokerLifecycleManager:
    return BrokerLifecycleManager(
        1,
        UUID(int=1),
        gateway,
        BrokerSettings(broker_heartbeat_interval_ms=1),
        system_platform().clock,
        cluster_id="test",
        endpoints=(),
        on_lease_expired=on_lease_expired,
    )


async def until_active(failures: Sequence[MoldauError]) -> None:
    lifecycle = lifecycle_manager(FailingGateway(failures), None)
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


def test_a_stop_ends_the_lease_and_the_heartbeats() -> None:
    async def run() -> None:
        gateway, ended = FailingGateway([]), []
        lifecycle = lifecycle_manager(gateway, lambda: ended.append(True))
        await lifecycle.start()
        await lifecycle.wait_until_active()
        assert lifecycle.lease.is_valid()
        lifecycle.stop()
        sent = gateway.heartbeats
        assert (lifecycle.lease.is_valid(), ended) == (False, [True])
        # The heartbeat interval is one millisecond, and a late response must not extend the lease.
        await asyncio.sleep(0.05)
        assert (gateway.heartbeats, lifecycle.lease.is_valid()) == (sent, False)
        await lifecycle.close()
        assert ended == [True]

    asyncio.run(run())
