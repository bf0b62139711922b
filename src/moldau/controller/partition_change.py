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
from moldau.metadata.image import NO_LEADER, PartitionImage
from moldau.metadata.records import NO_CHANGE, RECOVERED, RECOVERING, UNCHANGED, PartitionChangeRecord
from moldau.raft.messages import LogEnd
from moldau.settings.effective import EffectiveSettings

Replicas = tuple[int, ...]


class Kept(Enum):
    """What a broker still has of the records that it vouched for."""

    EVERYTHING = "everything"
    """It runs, or closed its logs when it stopped."""
    SYNCED = "synced"
    """It ended in any other way: only what was acknowledged without being synced may be gone."""
    NOTHING = "nothing"
    """It came back with another disk, or with an older state of its disk."""


def settings_as_decided(state: ControllerState, settings: EffectiveSettings) -> EffectiveSettings:
    """With what is decided and not committed yet: a leader will know it when it learns of this decision."""
    return EffectiveSettings(settings.static, state.image)


def active_brokers(state: ControllerState) -> set[int]:
    return {broker_id for broker_id, broker in state.image.brokers.items() if broker.is_active}


class PartitionChange:
    def __init__(
        self, topic_id: UUID, partition: PartitionImage, *, min_in_sync: int, active: Container[int]
    ) -> None:
        """`min_in_sync` is as configured; `active` are the brokers that may lead."""
        self._topic_id = topic_id
        self._old = partition
        self._min_in_sync = min_in_sync
        self._active = active
        self.replicas = partition.replicas
        self.in_sync = partition.in_sync
        self.adding = partition.adding
        self.removing = partition.removing
        self.is_recovering = partition.is_recovering
        self.restarted_uncleanly: int | None = None
        """A replica that may have lost records: it vouches for nothing any more, if anybody else does."""
        self.has_lost_everything = False
        """That replica vouches for nothing even if nobody else does."""

    def record(
        self, *, prefer_first: bool = False, log_ends: Mapping[int, LogEnd] | None = None
    ) -> PartitionChangeRecord | None:
        """None where nothing changes. `prefer_first` moves the leadership to the preferred replica if it can take
        it. With `log_ends` of live replicas the longest log leads where nobody else can, whatever is lost."""
        old = self._old
        pool = self._who_has_everything_committed()
        leader, is_recovering = self._leader(pool, prefer_first), self.is_recovering
        in_sync = self._settled_in_sync(leader, pool)
        elected_uncleanly = False
        if leader == NO_LEADER and log_ends:
            leader = self._longest_log(log_ends)
            if leader != NO_LEADER:
                in_sync, pool, is_recovering = (leader,), (), True
                elected_uncleanly = True
        if (self.adding or self.removing) and leader != NO_LEADER:
            leader, in_sync = self._complete_reassignment(leader, in_sync)
        eligible = self._eligible(in_sync, pool)
        last_known = self._last_known(leader)
        elected = leader != old.leader or any(replica not in self.replicas for replica in old.replicas)
        if (
            not elected
            and in_sync == old.in_sync
            and eligible == old.eligible
            and last_known == old.last_known_eligible
            and self.replicas == old.replicas
            and self.adding == old.adding
            and self.removing == old.removing
            and is_recovering == old.is_recovering
        ):
            return None
        return PartitionChangeRecord(
            partition_id=old.index,
            topic_id=self._topic_id,
            isr=None if in_sync == old.in_sync else in_sync,
            # Named again where a replica goes: it must not take itself for a follower in this epoch.
            leader=leader if elected else UNCHANGED,
            replicas=None if self.replicas == old.replicas else self.replicas,
            removing_replicas=None if self.removing == old.removing else self.removing,
            adding_replicas=None if self.adding == old.adding else self.adding,
            # Said again where it recovers already: every unclean election is to be seen in the metadata.
            leader_recovery_state=RECOVERING
            if elected_uncleanly
            else _recovery_state(old.is_recovering, is_recovering),
            eligible_leader_replicas=None if eligible == old.eligible else eligible,
            last_known_elr=None if last_known == old.last_known_eligible else last_known,
            directories=None if self.replicas == old.replicas else (None,) * len(self.replicas),
        )

    def after(self, record: PartitionChangeRecord | None) -> PartitionImage:
        """What a leader is told: the partition once the record is applied, but for its replicas."""
        old = self._old
        if record is None:
            return old
        elected = record.leader != UNCHANGED
        return dataclasses.replace(
            old,
            leader=record.leader if elected else old.leader,
            leader_epoch=old.leader_epoch + elected,
            in_sync=old.in_sync if record.isr is None else record.isr,
            partition_epoch=old.partition_epoch + 1,
            is_recovering=old.is_recovering
            if record.leader_recovery_state == NO_CHANGE
            else record.leader_recovery_state == RECOVERING,
        )

    def _who_has_everything_committed(self) -> Replicas:
        """Replicas that have been in sync since anything was committed last, in the order of preference."""
        old, unclean = self._old, self.restarted_uncleanly
        return tuple(
            replica
            for replica in self.replicas
            if replica != unclean and (replica in old.eligible or replica in old.in_sync)
        )

    def _leader(self, pool: Replicas, prefer_first: bool) -> int:
        may_lead = [
            replica for replica in self.replicas if replica in self.in_sync and replica in self._active
        ]
        if may_lead:
            if self._old.leader in may_lead and not (prefer_first and may_lead[0] == self.replicas[0]):
                return self._old.leader
            return may_lead[0]
        return next((replica for replica in pool if replica in self._active), NO_LEADER)

    def _longest_log(self, log_ends: Mapping[int, LogEnd]) -> int:
        asked = [replica for replica in self.replicas if replica in log_ends and replica in self._active]
        # Of equals max takes the first, which is the preferred one.
        return max(asked, key=lambda replica: log_ends[replica], default=NO_LEADER)

    def _settled_in_sync(self, leader: int, pool: Replicas) -> Replicas:
        if leader in self.in_sync:
            return self.in_sync
        if leader != NO_LEADER:
            return (leader,)
        if self.in_sync:
            return self.in_sync
        waited_for = [replica for replica in self._old.in_sync if replica in pool] or pool[:1]
        if waited_for or self.has_lost_everything:
            return tuple(waited_for)
        return self._old.in_sync

    def _eligible(self, in_sync: Replicas, pool: Replicas) -> Replicas:
        """Below the minimum nothing is committed, so who leaves the in-sync set there still has all that is."""
        replica_count = len(self.replicas) - len(self.adding)
        if len(in_sync) >= max(1, min(self._min_in_sync, replica_count)):
            return ()
        return tuple(replica for replica in pool if replica in self.replicas and replica not in in_sync)

    def _complete_reassignment(self, leader: int, in_sync: Replicas) -> tuple[int, Replicas]:
        """Done when all that are to stay are in sync: sooner there would be fewer copies than were asked for."""
        staying = _without(self.replicas, self.removing)
        if not all(replica in in_sync and replica in self._active for replica in staying):
            return leader, in_sync
        in_sync = _without(in_sync, self.removing)
        self.replicas, self.adding, self.removing = staying, (), ()
        return (leader if leader in staying else staying[0]), in_sync

    def _last_known(self, leader: int) -> Replicas:
        """Who lost its place by an unclean restart while there was no leader: where to look for lost records."""
        old, unclean = self._old, self.restarted_uncleanly
        if leader != NO_LEADER:
            return ()
        known = tuple(replica for replica in old.last_known_eligible if replica in self.replicas)
        if unclean is None or unclean in known or not (unclean in old.in_sync or unclean in old.eligible):
            return known
        return (*known, unclean)


def _recovery_state(was_recovering: bool, is_recovering: bool) -> int:
    if was_recovering == is_recovering:
        return NO_CHANGE
    return RECOVERING if is_recovering else RECOVERED


def _without(replicas: Replicas, others: Container[int]) -> Replicas:
    return tuple(replica for replica in replicas if replica not in others)
