"""The availability of other brokers, as far as this node knows more than the metadata image.

The image names a leader until the controller has fenced it, some 100 ms after its process was killed. A client that
requests metadata in this time must not get the old leader: some clients then retry only after a second. So a broker
that closes its connections is suspected until it responds to a request on a new connection. Meanwhile requests for the
leaders of its partitions wait until the image names other leaders.

Kafka lists only brokers that are not fenced. Here a broker stays listed for a moment after it was fenced, because
librdkafka removes a broker that is no longer listed, and with it the partitions that it is just moving to the next
leader.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Container, Mapping
from itertools import chain, repeat

from moldau.concurrency.notifier import Notifier
from moldau.concurrency.tasks import cancel_and_wait
from moldau.metadata.image import BrokerRegistration, MetadataImage
from moldau.metadata.loader import MetadataLoader
from moldau.observe.logging import get_logger
from moldau.peers.probe import ProbeResult
from moldau.platform.clock import Clock

log = get_logger(__name__)

ProbeBroker = Callable[[int], Awaitable[ProbeResult]]

SUCCESSOR_WAIT_MS = 1_000
"""How long after a broker is suspected a request waits for the next leaders. An election takes 50 to 200 ms; without a
majority of the voters there is none, and the client gets LEADER_NOT_AVAILABLE."""
FENCED_LISTED_MS = 5_000
"""How long a fenced broker stays listed. Clients that lost their connection to it request metadata several times in
this time. It is less than the 9 s for which Kafka lists a killed broker, which is its session timeout."""
SUSPICION_MS_MAX = 10_000
"""How long a broker is suspected. The controller fences a broker that is really gone within its session timeout. If it
does not, only the connection between that broker and this node is broken, and clients may reach the broker."""
PROBE_DELAYS_S = (0.0, 0.05, 0.25, 1.0)
"""The delay before each probe of a suspected broker; the last one is repeated."""


class BrokerAvailability:
    def __init__(self, metadata: MetadataLoader, clock: Clock, *, probe: ProbeBroker) -> None:
        self._metadata = metadata
        self._clock = clock
        self._probe = probe
        self._brokers: Mapping[int, BrokerRegistration] = metadata.image.brokers
        self._suspected_ms: dict[int, int] = {}
        """The suspected brokers, and when each was first suspected."""
        self._probes: dict[int, asyncio.Task[None]] = {}
        self._fenced_ms: dict[int, int] = {}
        """When each fenced broker was fenced, if this node has seen it unfenced before."""
        self._changed = Notifier()
        self._is_closed = False
        metadata.add_image_listener(self._on_image)

    async def close(self) -> None:
        self._is_closed = True
        probes, self._probes = self._probes, {}
        await cancel_and_wait(*probes.values())
        self._suspected_ms.clear()
        self._changed.notify_all()

    # Events

    def on_disconnect(self, broker_id: int) -> None:
        """Suspects a broker that closed a connection between this node and itself."""
        broker = self._metadata.image.brokers.get(broker_id)
        if broker is None or broker.fenced or broker_id in self._suspected_ms or self._is_closed:
            return
        log.info("broker is suspected, because it closed a connection", broker=broker_id)
        self._suspected_ms[broker_id] = self._clock.monotonic_ms()
        self._probes[broker_id] = asyncio.get_running_loop().create_task(self._probe_until_alive(broker_id))

    def _on_image(self, image: MetadataImage) -> None:
        previous, self._brokers = self._brokers, image.brokers
        if previous is not image.brokers:
            for broker_id, before in previous.items():
                broker = image.brokers.get(broker_id)
                if broker != before:
                    self._clear_suspicion(broker_id)
                if broker is None or not broker.fenced:
                    self._fenced_ms.pop(broker_id, None)
                elif not before.fenced:
                    self._fenced_ms[broker_id] = self._clock.monotonic_ms()
        self._changed.notify_all()

    async def _probe_until_alive(self, broker_id: int) -> None:
        """Probes a suspected broker until it responds, or until SUSPICION_MS_MAX have passed. A change of its
        registration ends the probes too. A broker that neither responds nor closes the connection may be paused, and
        then clients should wait for it."""
        deadline_ms = self._suspected_ms[broker_id] + SUSPICION_MS_MAX
        for delay_s in chain(PROBE_DELAYS_S, repeat(PROBE_DELAYS_S[-1])):
            if delay_s:
                await asyncio.sleep(delay_s)
            result = await self._probe(broker_id)
            if result in (ProbeResult.REACHABLE, ProbeResult.UNKNOWN) or self._clock.monotonic_ms() >= deadline_ms:
                log.info("broker is no longer suspected", broker=broker_id, probe=result.value)
                break
        self._clear_suspicion(broker_id)
        self._changed.notify_all()

    def _clear_suspicion(self, broker_id: int) -> None:
        self._suspected_ms.pop(broker_id, None)
        probe = self._probes.pop(broker_id, None)
        if probe is not None and probe is not asyncio.current_task():
            probe.cancel()

    # Queries

    @property
    def suspected(self) -> Collection[int]:
        """The brokers whose processes have probably ended, but which are not fenced yet."""
        return self._suspected_ms.keys()

    def is_listed(self, broker: BrokerRegistration) -> bool:
        """Returns whether clients should see the broker: it is not fenced, or was fenced only a moment ago."""
        if not broker.fenced:
            return True
        fenced_ms = self._fenced_ms.get(broker.broker_id)
        return fenced_ms is not None and self._clock.monotonic_ms() < fenced_ms + FENCED_LISTED_MS

    async def wait_for_successors(self, leaders_in: Callable[[MetadataImage], Container[int]]) -> None:
        """Waits until the image has other leaders instead of suspected ones, or until SUCCESSOR_WAIT_MS have passed.

        `leaders_in` returns the leaders of the partitions that the request is about.
        """
        if len(self._brokers) > 1:
            # Handle disconnects that arrived together with this request, because one may be why the client sent it.
            await asyncio.sleep(0)
        while self._suspected_ms:
            leaders = leaders_in(self._metadata.image)
            suspected_ms = [since_ms for broker_id, since_ms in self._suspected_ms.items() if broker_id in leaders]
            left_ms = max(suspected_ms, default=-SUCCESSOR_WAIT_MS) + SUCCESSOR_WAIT_MS - self._clock.monotonic_ms()
            if not suspected_ms or left_ms <= 0:
                return
            await self._changed.wait(left_ms)
