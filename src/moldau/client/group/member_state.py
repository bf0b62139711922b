"""Parts of a group member's state: its configuration, generation, heartbeats and retries."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from moldau.client.group.assignors import ConsumerPartitionAssignor
from moldau.concurrency.backoff import exponential_backoff_ms


class MemberState(Enum):
    UNJOINED = "unjoined"
    JOINING = "joining"
    """JoinGroup is in flight."""
    ASSIGNING = "assigning"
    """This member is the leader and fetches the metadata for the assignment."""
    SYNCING = "syncing"
    JOINED = "joined"
    """The assignment has arrived and takes effect in the user's next poll."""
    STABLE = "stable"
    FENCED = "fenced"
    """Another consumer uses the instance id. This state is final, so that the two do not fence each other forever."""
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class GroupRebalanceConfig:
    group_id: str
    assignors: tuple[ConsumerPartitionAssignor, ...]
    instance_id: str | None = None
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    poll_interval_max_ms: int = 300_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    auto_commit: bool = True

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_interval_ms < self.session_timeout_ms:
            raise ValueError("heartbeat_interval_ms must be above 0 and below session_timeout_ms")
        if not self.assignors:
            raise ValueError("a consumer needs at least one assignor")


class Generation(NamedTuple):
    """The generation and member id of a request. `generation_id` is -1 outside a generation."""

    generation_id: int = -1
    member_id: str = ""
    protocol: str = ""
    """The name of the assignor that the group selected."""

    @property
    def is_member(self) -> bool:
        return self.generation_id >= 0 and self.member_id != ""


NO_GENERATION = Generation()


class ConsumerGroupMetadata(NamedTuple):
    """Identifies the member that commits offsets in a transaction. The default is no member, so no check."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class Heartbeat:
    """The time of the next heartbeat, and the deadlines of the session and of the user's next poll."""

    def __init__(self, config: GroupRebalanceConfig) -> None:
        self._config = config
        self._next_send_at_ms = 0
        self.session_deadline_ms = 0
        self.poll_deadline_ms = 0
        self.in_flight_id: int | None = None
        """The id of the heartbeat whose response is awaited."""
        self._last_id = 0

    def restart(self, now_ms: int, next_send_at_ms: int) -> None:
        """Starts a new session. The response to an earlier heartbeat is ignored."""
        self._next_send_at_ms = next_send_at_ms
        self.record_success(now_ms)

    def send(self, now_ms: int) -> int:
        """Records a heartbeat sent now and returns its id."""
        self._next_send_at_ms = now_ms + self._config.heartbeat_interval_ms
        self._last_id += 1
        self.in_flight_id = self._last_id
        return self._last_id

    def record_success(self, now_ms: int) -> None:
        self.in_flight_id = None
        self.session_deadline_ms = now_ms + self._config.session_timeout_ms

    def record_failure(self, now_ms: int) -> None:
        self.in_flight_id = None
        self._next_send_at_ms = now_ms + self._config.retry_backoff_ms

    def should_send(self, now_ms: int) -> bool:
        return self.in_flight_id is None and now_ms >= self._next_send_at_ms

    def next_at_ms(self) -> int:
        """Returns the earliest time at which a heartbeat or a deadline is due."""
        deadline_ms = min(self.session_deadline_ms, self.poll_deadline_ms)
        return min(self._next_send_at_ms, deadline_ms) if self.in_flight_id is None else deadline_ms


class RetrySchedule:
    """The time of the next attempt, with exponential backoff after failures."""

    def __init__(self, config: GroupRebalanceConfig) -> None:
        self._config = config
        self._failures = 0
        self.next_at_ms = 0

    def record_success(self) -> None:
        self._failures = 0

    def record_failure(self, now_ms: int) -> None:
        """Schedules the next attempt. The first failure causes no delay: often there is just a new generation."""
        failures, self._failures = self._failures, self._failures + 1
        backoff_ms, backoff_max_ms = self._config.retry_backoff_ms, self._config.retry_backoff_max_ms
        self.next_at_ms = now_ms + (exponential_backoff_ms(failures, backoff_ms, backoff_max_ms) if failures else 0)
