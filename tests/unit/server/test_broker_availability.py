"""Brokers that are suspected to be dead, and requests that wait for the leaders that replace them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Any

from moldau.metadata.image import MetadataImage, PartitionRegistration
from moldau.peers.probe import ProbeResult
from moldau.server.broker_availability import FENCED_LISTED_MS, SUCCESSOR_WAIT_MS, SUSPICION_MS_MAX, BrokerAvailability
from moldau.testing.simulation.platform.simulation import Simulation
from support.admin_broker import broker_image, image_of

DEAD = 2
REFUSED, REACHABLE, CLOSED, UNKNOWN = (
    ProbeResult.REFUSED,
    ProbeResult.REACHABLE,
    ProbeResult.CLOSED,
    ProbeResult.UNKNOWN,
)


class FakeMetadata:
    """Publishes images like the metadata loader."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self._listeners: list[Callable[[MetadataImage], None]] = []

    def add_image_listener(self, listener: Callable[[MetadataImage], None]) -> None:
        self._listeners.append(listener)

    def publish(self, image: MetadataImage) -> None:
        self.image = image
        for listener in self._listeners:
            listener(image)


class Setup:
    """Brokers 1 to 3. Broker 2 leads topic "a" and answers probes as scripted; the last result is repeated."""

    def __init__(self, simulation: Simulation, probes: Iterable[ProbeResult]) -> None:
        self._results = list(probes)
        self.probe_count = 0
        image = image_of({"a": 1}, brokers=[broker_image(2), broker_image(3)])
        topic = replace(image.topics["a"], partitions=(PartitionRegistration(0, (2, 3), (2, 3), DEAD, 3, 0),))
        metadata: Any = FakeMetadata(replace(image, topics={"a": topic}))
        self.metadata: FakeMetadata = metadata
        self.clock = simulation.add_host("node").platform.clock
        self.availability = BrokerAvailability(metadata, self.clock, probe=self._probe)

    async def _probe(self, broker_id: int) -> ProbeResult:
        assert broker_id == DEAD
        self.probe_count += 1
        return self._results.pop(0) if len(self._results) > 1 else self._results[0]

    def fence(self, *, leader: int = 3) -> None:
        image = self.metadata.image
        (partition,) = image.topics["a"].partitions
        topic = replace(image.topics["a"], partitions=(replace(partition, leader=leader),))
        brokers = {**image.brokers, DEAD: broker_image(DEAD, fenced=True)}
        self.metadata.publish(replace(image, brokers=brokers, topics={"a": topic}))

    async def wait_for_successors(self) -> int:
        """Returns how many milliseconds a request for all leaders waits."""
        began_ms = self.clock.monotonic_ms()
        await self.availability.wait_for_successors(
            lambda image: {each.leader for topic in image.topics.values() for each in topic.partitions}
        )
        return self.clock.monotonic_ms() - began_ms

    def is_listed(self) -> bool:
        return self.availability.is_listed(self.metadata.image.brokers[DEAD])


def run(test: Callable[[Setup], Awaitable[None]], *probes: ProbeResult) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        setup = Setup(simulation, probes or [REFUSED])
        await test(setup)
        await setup.availability.close()

    simulation.run(main, 60_000)


def test_a_request_does_not_wait_while_no_leader_is_suspected() -> None:
    async def test(setup: Setup) -> None:
        assert await setup.wait_for_successors() == 0
        setup.availability.on_disconnect(DEAD)
        began_ms = setup.clock.monotonic_ms()
        await setup.availability.wait_for_successors(lambda image: {1, 3})
        assert setup.clock.monotonic_ms() == began_ms

    run(test)


def test_a_request_waits_until_the_image_has_the_next_leader() -> None:
    async def test(setup: Setup) -> None:
        setup.availability.on_disconnect(DEAD)
        assert set(setup.availability.suspected) == {DEAD}
        waiting = asyncio.ensure_future(setup.wait_for_successors())
        await asyncio.sleep(0.1)
        setup.metadata.publish(replace(setup.metadata.image, offset=5))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        setup.fence()
        assert not setup.availability.suspected
        assert 120 <= await waiting <= 130

    run(test)


def test_a_request_gets_the_disconnect_that_arrives_together_with_it() -> None:
    async def test(setup: Setup) -> None:
        waiting = asyncio.ensure_future(setup.wait_for_successors())
        asyncio.get_running_loop().call_soon(setup.availability.on_disconnect, DEAD)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        setup.fence()
        await waiting

    run(test)


def test_requests_wait_only_for_a_limited_time_after_the_disconnect() -> None:
    async def test(setup: Setup) -> None:
        setup.availability.on_disconnect(DEAD)
        assert SUCCESSOR_WAIT_MS <= await setup.wait_for_successors() <= SUCCESSOR_WAIT_MS + 20
        assert await setup.wait_for_successors() == 0
        assert set(setup.availability.suspected) == {DEAD}

    run(test)


def test_a_broker_that_responds_is_no_longer_suspected() -> None:
    async def test(setup: Setup) -> None:
        setup.availability.on_disconnect(DEAD)
        assert await setup.wait_for_successors() <= 20
        assert not setup.availability.suspected
        assert setup.probe_count == 1

    run(test, REACHABLE)


def test_a_dying_process_that_accepts_connections_stays_suspected() -> None:
    async def test(setup: Setup) -> None:
        setup.availability.on_disconnect(DEAD)
        await asyncio.sleep(5)
        assert set(setup.availability.suspected) == {DEAD}

    run(test, CLOSED, CLOSED, CLOSED, REFUSED)


def test_a_suspicion_ends_if_the_controller_does_not_fence_the_broker() -> None:
    async def test(setup: Setup) -> None:
        setup.availability.on_disconnect(DEAD)
        await asyncio.sleep(SUSPICION_MS_MAX / 1000 + 2)
        assert not setup.availability.suspected
        count = setup.probe_count
        await asyncio.sleep(5)
        assert setup.probe_count == count

    run(test, CLOSED)


def test_a_broker_is_not_suspected_after_the_close() -> None:
    async def test(setup: Setup) -> None:
        await setup.availability.close()
        setup.availability.on_disconnect(DEAD)
        assert not setup.availability.suspected

    run(test)


def test_a_broker_that_does_not_respond_is_not_suspected() -> None:
    async def test(setup: Setup) -> None:
        setup.availability.on_disconnect(DEAD)
        await asyncio.sleep(5)
        assert not setup.availability.suspected

    run(test, UNKNOWN)


def test_a_broker_that_responds_again_is_no_longer_suspected() -> None:
    async def test(setup: Setup) -> None:
        setup.availability.on_disconnect(DEAD)
        await asyncio.sleep(10)
        assert not setup.availability.suspected

    run(test, REFUSED, REFUSED, REFUSED, REACHABLE)


def test_probes_end_when_the_broker_is_fenced() -> None:
    async def test(setup: Setup) -> None:
        setup.availability.on_disconnect(DEAD)
        await asyncio.sleep(0.06)
        setup.fence()
        count = setup.probe_count
        await asyncio.sleep(5)
        assert setup.probe_count == count == 2

    run(test)


def test_fenced_and_unknown_brokers_are_not_suspected() -> None:
    async def test(setup: Setup) -> None:
        setup.fence()
        setup.availability.on_disconnect(DEAD)
        setup.availability.on_disconnect(9)
        assert not setup.availability.suspected
        await asyncio.sleep(1)
        assert setup.probe_count == 0

    run(test)


def test_a_broker_stays_listed_for_a_moment_after_it_was_fenced() -> None:
    async def test(setup: Setup) -> None:
        assert setup.is_listed()
        setup.fence()
        await asyncio.sleep(FENCED_LISTED_MS / 1000 - 0.1)
        assert setup.is_listed()
        await asyncio.sleep(0.2)
        assert not setup.is_listed()
        unfenced = replace(setup.metadata.image, brokers={**setup.metadata.image.brokers, DEAD: broker_image(DEAD)})
        setup.metadata.publish(unfenced)
        assert setup.is_listed()

    run(test)


def test_a_broker_that_registers_is_not_listed_before_it_is_unfenced() -> None:
    async def test(setup: Setup) -> None:
        image = setup.metadata.image
        new = broker_image(4, fenced=True)
        setup.metadata.publish(replace(image, brokers={**image.brokers, 4: new}))
        assert not setup.availability.is_listed(new)

    run(test)


def test_closing_ends_all_waits() -> None:
    async def test(setup: Setup) -> None:
        setup.availability.on_disconnect(DEAD)
        waiting = asyncio.ensure_future(setup.wait_for_successors())
        await asyncio.sleep(0.1)
        await setup.availability.close()
        assert await waiting < SUCCESSOR_WAIT_MS

    run(test)
