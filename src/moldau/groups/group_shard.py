"""One shard of the group coordinator: its driver, and the deletion of offsets that are not needed any more."""

from collections.abc import Callable, Iterable, Mapping

from moldau.coordinator.result import Now
from moldau.coordinator.shard_driver import ShardDriver
from moldau.coordinator.state_partition import replay_batch
from moldau.groups import formats
from moldau.groups.records import GroupRecord
from moldau.groups.requests import GroupResult, TopicKey
from moldau.groups.shard import GroupCoordinatorShard
from moldau.metadata.image import TopicImage
from moldau.partitions.partition import Partition
from moldau.platform.clock import Clock


class GroupShard:
    def __init__(
        self,
        partition: Partition,
        clock: Clock,
        *,
        commit_timeout_ms: int,
        existing_topics: Callable[[], Mapping[str, TopicImage]],
        deleted_topics: Mapping[TopicKey, int] | None = None,
        on_loaded: Callable[[], None] | None = None,
    ) -> None:
        """`deleted_topics` are those that the shard of an earlier leader epoch has not handled. `on_loaded` is called
        when the shard serves requests."""
        self.driver: ShardDriver[GroupCoordinatorShard, GroupRecord] = ShardDriver(
            partition,
            formats,
            clock,
            contents="groups",
            commit_timeout_ms=commit_timeout_ms,
            replay=replay_batch,
            on_activated=self._on_activated,
        )
        self.deleted_topics: dict[TopicKey, int] = dict(deleted_topics or {})
        """Deleted topics that may still have offsets in this shard, with their deletion times in ms."""
        self._existing_topics = existing_topics
        self._on_loaded = on_loaded
        self._clock = clock

    def _on_activated(self) -> None:
        self._delete_offsets_of_deleted_topics()
        # The metadata image of this node is at least as new as the image of any earlier leader of the partition while
        # it led. A topic that has offsets here but is missing in the image was therefore deleted.
        self._delete_offsets_of_missing_topics(self._existing_topics())
        if self._on_loaded is not None:
            self._on_loaded()

    def on_topics_deleted(self, topics: Iterable[TopicKey]) -> None:
        """Deletes the offsets of deleted topics now, or after loading if the shard is still loading."""
        self.deleted_topics.update(dict.fromkeys(topics, self._clock.wall_ms()))
        self._delete_offsets_of_deleted_topics()

    def _delete_offsets_of_missing_topics(self, topics: Mapping[str, TopicImage]) -> None:
        """Deletes offsets whose topic id is not in `topics`, which contains all existing topics. An earlier coordinator
        may have crashed before it deleted the offsets of a deleted topic."""
        shard = self.driver.shard
        if shard is not None:
            self.on_topics_deleted(
                [
                    (name, topic_id)
                    for name, topic_id in shard.topics()
                    if topic_id is not None and (name not in topics or topics[name].topic_id != topic_id)
                ]
            )

    def cleanup(self) -> None:
        """Deletes expired offsets. Deletes offsets of deleted topics again if an earlier attempt failed."""
        self.driver.run_repeatedly(lambda shard, now: shard.expire_offsets(now))
        self._delete_offsets_of_deleted_topics()

    def _delete_offsets_of_deleted_topics(self) -> None:
        topics = dict(self.deleted_topics)

        def delete(shard: GroupCoordinatorShard, now: Now) -> GroupResult | None:
            result = shard.delete_offsets_of_topics(topics)
            if result is None:
                for key, deleted_ms in topics.items():
                    # If the deletion time has changed, another topic of this name was deleted, so keep the entry.
                    if self.deleted_topics.get(key) == deleted_ms:
                        del self.deleted_topics[key]
            return result

        if topics:
            self.driver.run_repeatedly(delete)
