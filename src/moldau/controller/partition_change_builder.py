"""Builds the PartitionChangeRecord of one partition: ISR, ELR and leader (Kafka's PartitionChangeBuilder).

A decision sets the wanted changes and calls `build`, which applies the rules of KIP-966 with one exception: the last
ISR member stays in the ISR, without a leader, until a replica with all committed records is back.

The ISR becomes empty only if the last member comes back without its records and no other replica has them. Only an
unclean election can then elect a leader.
"""

import dataclasses
from collections.abc import Container, Mapping
from enum import Enum
from uuid import UUID

from moldau.controller.partition_index import PartitionName
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

Replicas = tuple[int, ...]


class RetainedData(Enum):
    """The committed records that a broker still has when it registers."""

    ALL = "all"
    """The broker is running, or closed its logs when it stopped."""
    SYNCED = "synced"
    """The broker stopped without closing its logs. Records that were acknowledged before their fsync may be lost."""
    NONE = "none"
    """The broker registered with another disk, or with an older state of its disk."""


def change_builder(
    state: ControllerState, name: PartitionName, active: Container[int], *, min_isr: int | None = None
) -> "PartitionChangeBuilder":
    """Returns a builder that elects no offline replica. `active` are the brokers that may lead. `min_isr` replaces the
    partition's min.insync.replicas."""
    topic = state.image.topics[name.topic]
    return PartitionChangeBuilder(
        topic.topic_id,
        topic.partitions[name.partition],
        min_isr=state.settings.topic(name.topic).min_insync_replicas if min_isr is None else min_isr,
        active=state.exclude_offline(active, topic.topic_id, name.partition),
        controller_id=state.image.controller_id if name.topic in state.controller_led_topics else None,
    )


class PartitionChangeBuilder:
    def __init__(
        self,
        topic_id: UUID,
        partition: PartitionRegistration,
        *,
        min_isr: int,
        active: Container[int],
        controller_id: int | None = None,
    ) -> None:
        """`min_isr` is the configured min.insync.replicas. `active` are the brokers that may lead. `controller_id` is
        the active controller if the topic has leader.follows.controller; its replica is then the preferred one."""
        self._topic_id = topic_id
        self._old = partition
        self._min_in_sync = min_isr
        self._active = active
        self._controller_id = controller_id
        self.replicas = partition.replicas
        self.isr = partition.isr
        self.adding_replicas = partition.adding_replicas
        self.removing_replicas = partition.removing_replicas
        self.is_recovering = partition.is_recovering
        self.unclean_shutdown_replica: int | None = None
        """A replica that may have lost records. It leaves the ELR. It also leaves the ISR if another replica has all
        committed records."""
        self.has_lost_all_records = False
        """Whether `unclean_shutdown_replica` lost all its records. It then leaves the ISR even if no other replica has
        all committed records."""

    def build(
        self, *, elect_preferred: bool = False, log_ends: Mapping[int, EpochEndOffset] | None = None
    ) -> PartitionChangeRecord | None:
        """Returns the record, or None if nothing changes.

        `elect_preferred` makes the preferred replica the leader if that replica can lead. `log_ends` are the log ends
        of live replicas and allow an unclean election. If no replica with all committed records can lead, the replica
        with the longest log becomes the leader.
        """
        old = self._old
        complete = self._replicas_with_committed_records()
        leader, is_recovering = self._resulting_leader(complete, elect_preferred), self.is_recovering
        isr = self._resulting_isr(leader, complete)
        elected_uncleanly = False
        if leader == NO_LEADER and log_ends:
            leader = self._longest_log(log_ends)
            if leader != NO_LEADER:
                isr, complete, is_recovering = (leader,), (), True
                elected_uncleanly = True
        if (self.adding_replicas or self.removing_replicas) and leader != NO_LEADER:
            leader, isr = self._complete_reassignment(leader, isr)
        elr = self._resulting_elr(isr, complete)
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
            # Set the leader also if a replica is removed and the leader stays the same: this raises the leader epoch,
            # which stops the removed replica from following.
            leader=leader if elected else NO_LEADER_CHANGE,
            replicas=None if self.replicas == old.replicas else self.replicas,
            removing_replicas=None if self.removing_replicas == old.removing_replicas else self.removing_replicas,
            adding_replicas=None if self.adding_replicas == old.adding_replicas else self.adding_replicas,
            # RECOVERING is also set if the partition is already recovering, so that the metadata shows every unclean
            # election.
            leader_recovery_state=RECOVERING
            if elected_uncleanly
            else _recovery_state(old.is_recovering, is_recovering),
            eligible_leader_replicas=None if elr == old.elr else elr,
            last_known_elr=None if last_known == old.last_known_elr else last_known,
            directories=None if self.replicas == old.replicas else (None,) * len(self.replicas),
        )

    def image_after(self, record: PartitionChangeRecord | None) -> PartitionRegistration:
        """Returns the partition after the record. Updates only the fields that an AlterPartition response contains."""
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
        """Returns the replicas that have all committed records (ISR and ELR), in order of preference."""
        old, unclean = self._old, self.unclean_shutdown_replica
        return tuple(
            replica for replica in self.replicas if replica != unclean and (replica in old.elr or replica in old.isr)
        )

    def _replicas_by_preference(self) -> Replicas:
        first = self._controller_id
        if first is None or first not in self.replicas or first in self.removing_replicas:
            return self.replicas
        return (first, *(replica for replica in self.replicas if replica != first))

    def _resulting_leader(self, complete: Replicas, elect_preferred: bool) -> int:
        replicas = self._replicas_by_preference()
        may_lead = [replica for replica in replicas if replica in self.isr and replica in self._active]
        if may_lead:
            if self._old.leader in may_lead and not (elect_preferred and may_lead[0] == replicas[0]):
                return self._old.leader
            return may_lead[0]
        return next((replica for replica in replicas if replica in complete and replica in self._active), NO_LEADER)

    def _longest_log(self, log_ends: Mapping[int, EpochEndOffset]) -> int:
        replicas = self._replicas_by_preference()
        candidates = [replica for replica in replicas if replica in log_ends and replica in self._active]
        # If several log ends are equal, `max` returns the first candidate, which is the most preferred one.
        return max(candidates, key=lambda replica: log_ends[replica], default=NO_LEADER)

    def _resulting_isr(self, leader: int, complete: Replicas) -> Replicas:
        if leader in self.isr:
            return self.isr
        if leader != NO_LEADER:
            return (leader,)
        if self.isr:
            return self.isr
        last = [replica for replica in self._old.isr if replica in complete] or complete[:1]
        if last or self.has_lost_all_records:
            return tuple(last)
        return self._old.isr

    def _resulting_elr(self, isr: Replicas, complete: Replicas) -> Replicas:
        """Returns the ELR, which is empty if the ISR has at least min.insync.replicas members.

        `complete` are the replicas with all committed records. While the ISR is smaller, nothing is committed, so
        replicas that leave it still have all committed records.
        """
        replica_count = len(self.replicas) - len(self.adding_replicas)
        if len(isr) >= max(1, min(self._min_in_sync, replica_count)):
            return ()
        return tuple(replica for replica in complete if replica in self.replicas and replica not in isr)

    def _complete_reassignment(self, leader: int, isr: Replicas) -> tuple[int, Replicas]:
        """Completes the reassignment if all target replicas are active ISR members. An earlier completion would leave
        too few replicas in sync. Returns the leader and the ISR."""
        staying = _remove(self.replicas, self.removing_replicas)
        if not all(replica in isr and replica in self._active for replica in staying):
            return leader, isr
        isr = _remove(isr, self.removing_replicas)
        self.replicas, self.adding_replicas, self.removing_replicas = staying, (), ()
        return (leader if leader in staying else self._replicas_by_preference()[0]), isr

    def _resulting_last_known_elr(self, leader: int) -> Replicas:
        """Returns the last known ELR, which is empty if the partition has a leader. Otherwise it has the ISR and ELR
        members that had an unclean shutdown. They may still have committed records that no other replica has."""
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
