"""What becomes of one partition: who is in sync, who may yet lead, who leads, and the record that says so.

A decision sets what it wants to be different and asks for the record. Whatever it wanted, the rules of KIP-966
hold afterwards, but for one: who is left last in the in-sync set stays there, without a leader, until it comes back
or another replica that has everything committed does. Only where that one comes back without its records, and nobody
else has them, the set is empty: then an unclean election is all that helps.
"""

import dataclasses
from collections.abc import Container, Mapping
from enum import Enum
from uuid import UUID

from moldau.controller.state import ControllerState
from moldau.metadata.image import NO_LEADER, PartitionRegistration
from moldau.metadata.records import (
    NO_LEADER_CHANGE,
    NO_RECOVERY_STATE_CHANGE,
    RECOVERED,
    RECOVERING,
    PartitionChangeRecord,
)
from moldau.raft.messages import EpochEndOffset
from moldau.settings.effective import EffectiveSettings

Replicas = tuple[int, ...]


class RetainedData(Enum):
    """What a broker still has of the records that it vouched for."""

    ALL = "everything"
    """It runs, or closed its logs when it stopped."""
    SYNCED = "synced"
    """It ended in any other way: only what was acknowledged without being synced may be gone."""
    NONE = "nothing"
    """It came back with another disk, or with an older state of its disk."""


def speculative_settings(state: ControllerState, settings: EffectiveSettings) -> EffectiveSettings:
    """With what is decided and not committed yet: a leader will know it when it learns of this decision."""
    return EffectiveSettings(settings.static, state.image)


def active_brokers(state: ControllerState) -> set[int]:
    return {broker_id for broker_id, broker in state.image.brokers.items() if broker.is_active}


class PartitionChangeBuilder:
    def __init__(
        self, topic_id: UUID, partition: PartitionRegistration, *, min_isr: int, active: Container[int]
    ) -> None:
        """`min_isr` is as configured; `active` are the brokers that may lead."""
        self._topic_id = topic_id
        self._old = partition
        self._min_in_sync = min_isr
        self._active = active
        self.replicas = partition.replicas
        self.isr = partition.isr
        self.adding_replicas = partition.adding_replicas
        self.removing_replicas = partition.removing_replicas
        self.is_recovering = partition.is_recovering
        self.unclean_shutdown_replica: int | None = None
        """A replica that may have lost records: it vouches for nothing any more, if anybody else does."""
        self.has_lost_all_records = False
        """That replica vouches for nothing even if nobody else does."""

    def build(
        self, *, elect_preferred: bool = False, log_ends: Mapping[int, EpochEndOffset] | None = None
    ) -> PartitionChangeRecord | None:
        """None where nothing changes. `elect_preferred` moves the leadership to the preferred replica if it can take
        it. With `log_ends` of live replicas the longest log leads where nobody else can, whatever is lost."""
        old = self._old
        pool = self._replicas_with_committed_records()
        leader, is_recovering = self._resulting_leader(pool, elect_preferred), self.is_recovering
        isr = self._resulting_isr(leader, pool)
        elected_uncleanly = False
        if leader == NO_LEADER and log_ends:
            leader = self._longest_log(log_ends)
            if leader != NO_LEADER:
                isr, pool, is_recovering = (leader,), (), True
                elected_uncleanly = True
        if (self.adding_replicas or self.removing_replicas) and leader != NO_LEADER:
            leader, isr = self._complete_reassignment(leader, isr)
        elr = self._resulting_elr(isr, pool)
        last_known = self._resulting_last_known_elr(leader)
        elected = leader != old.leader or any(replica not in self.replicas for replica in old.replicas)
        if (
            not elected
            and isr == old.isr
            and elr == old.elr
            and last_known == old.last_known_elr
            and self.replicas == old.replicas
            and self.adding_replicas == old.adding_replicas
            and self.removing_replicas == old.removing_replicas
            and is_recovering == old.is_recovering
        ):
            return None
        return PartitionChangeRecord(
            partition_id=old.index,
            topic_id=self._topic_id,
            isr=None if isr == old.isr else isr,
            # Named again where a replica goes: it must not take itself for a follower in this epoch.
            leader=leader if elected else NO_LEADER_CHANGE,
            replicas=None if self.replicas == old.replicas else self.replicas,
            removing_replicas=None
            if self.removing_replicas == old.removing_replicas
            else self.removing_replicas,
            adding_replicas=None if self.adding_replicas == old.adding_replicas else self.adding_replicas,
            # Said again where it recovers already: every unclean election is to be seen in the metadata.
            leader_recovery_state=RECOVERING
            if elected_uncleanly
            else _recovery_state(old.is_recovering, is_recovering),
            eligible_leader_replicas=None if elr == old.elr else elr,
            last_known_elr=None if last_known == old.last_known_elr else last_known,
            directories=None if self.replicas == old.replicas else (None,) * len(self.replicas),
        )

    def image_after(self, record: PartitionChangeRecord | None) -> PartitionRegistration:
        """What a leader is told: the partition once the record is applied, but for its replicas."""
        old = self._old
        if record is None:
            return old
        elected = record.leader != NO_LEADER_CHANGE
        return dataclasses.replace(
            old,
            leader=record.leader if elected else old.leader,
            leader_epoch=old.leader_epoch + elected,
            isr=old.isr if record.isr is None else record.isr,
            partition_epoch=old.partition_epoch + 1,
            is_recovering=old.is_recovering
            if record.leader_recovery_state == NO_RECOVERY_STATE_CHANGE
            else record.leader_recovery_state == RECOVERING,
        )

    def _replicas_with_committed_records(self) -> Replicas:
        """Replicas that have been in sync since anything was committed last, in the order of preference."""
        old, unclean = self._old, self.unclean_shutdown_replica
        return tuple(
            replica
            for replica in self.replicas
            if replica != unclean and (replica in old.elr or replica in old.isr)
        )

    def _resulting_leader(self, pool: Replicas, elect_preferred: bool) -> int:
        may_lead = [replica for replica in self.replicas if replica in self.isr and replica in self._active]
        if may_lead:
            if self._old.leader in may_lead and not (elect_preferred and may_lead[0] == self.replicas[0]):
                return self._old.leader
            return may_lead[0]
        return next((replica for replica in pool if replica in self._active), NO_LEADER)

    def _longest_log(self, log_ends: Mapping[int, EpochEndOffset]) -> int:
        asked = [replica for replica in self.replicas if replica in log_ends and replica in self._active]
        # Of equals max takes the first, which is the preferred one.
        return max(asked, key=lambda replica: log_ends[replica], default=NO_LEADER)

    def _resulting_isr(self, leader: int, pool: Replicas) -> Replicas:
        if leader in self.isr:
            return self.isr
        if leader != NO_LEADER:
            return (leader,)
        if self.isr:
            return self.isr
        waited_for = [replica for replica in self._old.isr if replica in pool] or pool[:1]
        if waited_for or self.has_lost_all_records:
            return tuple(waited_for)
        return self._old.isr

    def _resulting_elr(self, isr: Replicas, pool: Replicas) -> Replicas:
        """Below the minimum nothing is committed, so who leaves the in-sync set there still has all that is."""
        replica_count = len(self.replicas) - len(self.adding_replicas)
        if len(isr) >= max(1, min(self._min_in_sync, replica_count)):
            return ()
        return tuple(replica for replica in pool if replica in self.replicas and replica not in isr)

    def _complete_reassignment(self, leader: int, isr: Replicas) -> tuple[int, Replicas]:
        """Done when all that are to stay are in sync: sooner there would be fewer copies than were asked for."""
        staying = _remove(self.replicas, self.removing_replicas)
        if not all(replica in isr and replica in self._active for replica in staying):
            return leader, isr
        isr = _remove(isr, self.removing_replicas)
        self.replicas, self.adding_replicas, self.removing_replicas = staying, (), ()
        return (leader if leader in staying else staying[0]), isr

    def _resulting_last_known_elr(self, leader: int) -> Replicas:
        """Who lost its place by an unclean restart while there was no leader: where to look for lost records."""
        old, unclean = self._old, self.unclean_shutdown_replica
        if leader != NO_LEADER:
            return ()
        known = tuple(replica for replica in old.last_known_elr if replica in self.replicas)
        if unclean is None or unclean in known or not (unclean in old.isr or unclean in old.elr):
            return known
        return (*known, unclean)


def _recovery_state(was_recovering: bool, is_recovering: bool) -> int:
    if was_recovering == is_recovering:
        return NO_RECOVERY_STATE_CHANGE
    return RECOVERING if is_recovering else RECOVERED


def _remove(replicas: Replicas, others: Container[int]) -> Replicas:
    return tuple(replica for replica in replicas if replica not in others)
