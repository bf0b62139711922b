"""A node that is behind the start of the metadata log catches up from a snapshot."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.testing.cluster import Cluster
from support.topics import QUIET

SETTINGS = {"metadata.log.max.record.bytes.between.snapshots": "1500"}
TIMEOUT_S = 60


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def create(cluster: Cluster, names: list[str], replicas: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, **QUIET})
    for name in names:
        created = admin.create_topics([NewTopic(name, 2, replicas)], operation_timeout=10)
        created[name].result(TIMEOUT_S)


def is_level(cluster: Cluster) -> bool:
    images = [node.broker.metadata.image for node in cluster.nodes.values()]
    return all(image == images[0] for image in images)


@pytest.mark.parametrize("loses_its_disk", [False, True])
def test_a_node_that_is_far_behind_catches_up_from_a_snapshot(tmp_path: Path, loses_its_disk: bool) -> None:
    with Cluster(3, settings=SETTINGS, data_dir=tmp_path) as cluster:
        create(cluster, ["before"])
        away = next(node_id for node_id in (1, 2, 3) if node_id != cluster.controller_id)
        end_before = cluster.nodes[away].broker.metadata.image.offset + 1
        cluster.kill(away)
        create(cluster, [f"topic-{number}" for number in range(12)])

        def logs_begin_later() -> bool:
            return all(node.broker.quorum._log.start_offset > end_before for node in cluster.nodes.values())

        wait_until(logs_begin_later, "snapshots shorten the logs of the others")
        directory = tmp_path / f"node-{away}" / "__cluster_metadata-0"
        if loses_its_disk:
            # Everything but its vote.
            for path in list(directory.iterdir()):
                if path.name != "quorum-state":
                    path.unlink()
        cluster.restart(away)
        wait_until(lambda: is_level(cluster), "all nodes have the same image")
        image = cluster.nodes[away].broker.metadata.image
        assert {"before", "topic-0", "topic-11"} <= set(image.topics)
        assert list(directory.glob("*.checkpoint"))
        assert cluster.nodes[away].broker.quorum._log.start_offset > end_before

        # The next start uses the fetched snapshot.
        cluster.kill(away)
        cluster.restart(away)
        create(cluster, ["after"])
        wait_until(lambda: is_level(cluster), "all nodes have the same image again")
        assert "after" in cluster.nodes[away].broker.metadata.image.topics


def test_a_flipped_bit_in_the_newest_snapshot_loses_nothing(tmp_path: Path) -> None:
    with Cluster(1, settings=SETTINGS, data_dir=tmp_path) as cluster:
        topics = [f"topic-{number}" for number in range(20)]
        create(cluster, topics, replicas=1)
        directory = tmp_path / "node-1" / "__cluster_metadata-0"
        wait_until(lambda: len(list(directory.glob("*.checkpoint"))) == 2, "two snapshots")
        cluster.kill(1)
        *_, newest = sorted(directory.glob("*.checkpoint"))
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 4
        newest.write_bytes(data)
        cluster.restart(1)
        assert set(topics) <= set(cluster.nodes[1].broker.metadata.image.topics)
        assert newest.with_name(newest.name + ".damaged").exists()
