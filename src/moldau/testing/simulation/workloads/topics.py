"""The topics of a seed's cluster, and what each of them promises."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from moldau.client.admin.admin import Admin
from moldau.client.net.cluster import Cluster
from moldau.testing.simulation.checkers.history import Partition


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partition_count: int
    is_cached: bool = False
    """Acknowledged when the in-sync replicas have it, whether or not it is on their disks."""
    is_unclean: bool = False
    """A replica that was not in sync may lead when no other can."""

    @property
    def partitions(self) -> Sequence[Partition]:
        return [(self.name, index) for index in range(self.partition_count)]

    def loss_reason(self, is_one_at_a_time: bool) -> str | None:
        """Why it may lose acknowledged records, if it may."""
        if self.is_unclean:
            return "unclean elections"
        if self.is_cached and not is_one_at_a_time:
            return "unclean ends of several nodes"
        return None

    async def create(self, cluster: Cluster, replication: int) -> None:
        configs: dict[str, str | None] = {}
        if self.is_cached:
            configs["write.caching"] = "true"
        if self.is_unclean:
            configs["unclean.leader.election.enable"] = "true"
        await Admin(cluster).create_topic(self.name, self.partition_count, replication, configs)


def draw_topics(draw: random.Random, *, is_cached: bool) -> list[TopicPlan]:
    """At least one that keeps everything; in some seeds one that may lose records, too. One whose writes are cached
    where `is_cached` says so."""
    topics = [TopicPlan("topic-0", draw.randint(1, 3))]
    if draw.random() < 0.5:
        topics.append(TopicPlan("topic-1", draw.randint(1, 2)))
    kind = draw.random()
    if kind < 0.15 or is_cached:
        topics.append(TopicPlan("cached", 1, is_cached=True))
    elif kind < 0.3:
        topics.append(TopicPlan("unclean", 1, is_unclean=True))
    return topics
