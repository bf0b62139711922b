"""`moldau.testing.Cluster`, and how several nodes act as one cluster for clients."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from moldau.cli.commands import app
from moldau.client import Admin, Consumer, Producer
from moldau.client.admin.types import ConfigChange, ConfigResource, ResourceType
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.record import TopicPartition
from moldau.testing import Cluster

T = TypeVar("T")
TIMEOUT_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A shared cluster for tests without faults."""
    with Cluster(3) as cluster:
        yield cluster


def run(work: Awaitable[T]) -> T:
    async def within() -> T:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(within())


async def wait_until(what: Callable[[], bool]) -> None:
    """Waits until the condition is true."""
    async with asyncio.timeout(TIMEOUT_S):
        while not what():
            await asyncio.sleep(0.01)


async def send(cluster: Cluster, topic: str, *values: str) -> None:
    async with Producer(cluster.bootstrap, request_timeout_ms=2_000) as producer:
        for value in values:
            await (await producer.send(topic, value=value.encode()))


async def read(cluster: Cluster, topic: str, count: int) -> list[str]:
    found: list[str] = []
    async with Admin(cluster.bootstrap) as admin:
        partitions = [TopicPartition(topic, each.index) for each in (await admin.describe_topic(topic)).partitions]
    async with Consumer(cluster.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        async for record in consumer:
            found.append((record.value or b"").decode())
            if len(found) == count:
                break
    return found


# One cluster


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_any_node_accepts_changes_and_shows_them_next(cluster: Cluster, node_id: int) -> None:
    async def main() -> None:
        async with Admin(cluster.address(node_id)) as admin:
            name = f"asked-of-{node_id}"
            await admin.create_topic(name, partitions=4)
            topic = await admin.describe_topic(name)
            assert [len(each.replicas) for each in topic.partitions] == [3] * 4
            await admin.alter_topic_configs(name, {"retention.ms": "5000"})
            assert (await admin.topic_configs(name))["retention.ms"].value == "5000"
            (result,) = (await admin.delete_topics([name])).values()
            assert result is None
            assert name not in [each.name for each in await admin.list_topics()]

    run(main())


def test_a_broker_describes_its_own_settings(cluster: Cluster) -> None:
    async def main() -> None:
        async with Admin(cluster.bootstrap) as admin:
            resources = [ConfigResource(ResourceType.BROKER, str(node_id)) for node_id in (1, 2, 3)]
            change = [ConfigChange("log.cleaner.backoff.ms", "1234")]
            results = await admin.alter_configs(dict.fromkeys(resources, change))
            assert list(results.values()) == [None] * 3
            for entries in (await admin.describe_configs(resources)).values():
                assert not isinstance(entries, KafkaError)
                assert entries["log.cleaner.backoff.ms"].value == "1234"

    run(main())


@pytest.mark.parametrize("node_id", [1, 2, 3])
def test_any_node_creates_a_topic_on_its_first_metadata_request(cluster: Cluster, node_id: int) -> None:
    async def main() -> None:
        topic = f"first-asked-{node_id}"
        async with Producer(cluster.address(node_id)) as producer:
            await (await producer.send(topic, value=b"1"))
        assert await read(cluster, topic, 1) == ["1"]

    run(main())


def test_all_nodes_return_the_same_brokers_and_forward_changes(cluster: Cluster) -> None:
    async def main() -> None:
        for node_id in (1, 2, 3):
            async with Admin(cluster.address(node_id)) as admin:
                found = await admin.describe_cluster()
                assert found.controller_id in (1, 2, 3)
                assert [each.node_id for each in found.brokers] == [1, 2, 3]
                assert (await admin.describe_quorum()).leader_id == cluster.controller_id

    run(main())


def test_the_offsets_topic_has_the_configured_replication_factor(cluster: Cluster) -> None:
    async def main() -> None:
        await send(cluster, "grouped", "1")
        async with Consumer(cluster.bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["grouped"])
            async for _ in consumer:
                break
        async with Admin(cluster.bootstrap) as admin:
            topic = await admin.describe_topic("__consumer_offsets")
            assert {len(each.replicas) for each in topic.partitions} == {3}

    run(main())


# Faults


@pytest.fixture
def faulty() -> Iterator[Cluster]:
    with Cluster(3, topics={"orders": 1}) as cluster:
        yield cluster


def test_a_killed_leader_is_replaced_and_has_its_data_after_a_restart(faulty: Cluster) -> None:
    async def main() -> None:
        await send(faulty, "orders", "1", "2")
        victim = faulty.leader_of("orders")
        faulty.kill(victim)
        assert victim not in faulty.nodes
        await send(faulty, "orders", "3")
        assert faulty.leader_of("orders") != victim
        faulty.restart(victim)
        assert await read(faulty, "orders", 3) == ["1", "2", "3"]
        # It still has everything if all others stop.
        await wait_until(lambda: len(isr(faulty)) == 3)

    run(main())


def isr(cluster: Cluster, but: int | None = None) -> tuple[int, ...]:
    """Returns the ISR as seen by the running nodes, except for `but`, which is paused or partitioned."""
    images = [node.broker.metadata.image for node_id, node in cluster.nodes.items() if node_id != but]
    newest = max(images, key=lambda image: image.offset)
    partition = newest.partition("orders", 0)
    assert partition is not None
    return partition.isr


def test_a_killed_controller_is_replaced(faulty: Cluster) -> None:
    async def main() -> None:
        victim = faulty.controller_id
        faulty.kill(victim)
        others = [node_id for node_id in (1, 2, 3) if node_id != victim]
        for node_id in others:
            async with Admin(faulty.address(node_id)) as admin:
                await admin.create_topic(f"after-{node_id}", replication_factor=2)
        assert faulty.controller_id in others

    run(main())


def test_a_paused_node_stops_responding_until_resumed(faulty: Cluster) -> None:
    async def main() -> None:
        victim = next(
            node_id for node_id in (1, 2, 3) if node_id not in (faulty.leader_of("orders"), faulty.controller_id)
        )
        faulty.pause(victim)
        faulty.pause(victim)
        await wait_until(lambda: victim not in isr(faulty, but=victim))
        await send(faulty, "orders", "1")
        faulty.resume(victim)
        await wait_until(lambda: victim in isr(faulty))

    run(main())


def test_a_paused_node_can_be_killed(faulty: Cluster) -> None:
    victim = next(node_id for node_id in (1, 2, 3) if node_id != faulty.controller_id)
    faulty.pause(victim)
    faulty.kill(victim)
    faulty.restart(victim)
    assert sorted(faulty.nodes) == [1, 2, 3]


def test_a_paused_node_can_be_stopped(faulty: Cluster) -> None:
    victim = next(node_id for node_id in (1, 2, 3) if node_id != faulty.controller_id)
    faulty.pause(victim)
    faulty.restart(victim)
    assert sorted(faulty.nodes) == [1, 2, 3]
    # A second pause works like the first.
    faulty.pause(victim)
    faulty.resume(victim)


def test_a_partition_blocks_traffic_until_it_heals(faulty: Cluster) -> None:
    async def main() -> None:
        victim = next(
            node_id for node_id in (1, 2, 3) if node_id not in (faulty.leader_of("orders"), faulty.controller_id)
        )
        faulty.partition(victim)
        await wait_until(lambda: victim not in isr(faulty, but=victim))
        await send(faulty, "orders", "1")
        behind = faulty.nodes[victim].broker.metadata.image.offset
        assert behind < max(node.broker.metadata.image.offset for node in faulty.nodes.values())
        faulty.heal()
        await wait_until(lambda: victim in isr(faulty))

    run(main())


def test_a_one_way_partition_drops_what_the_node_sends(faulty: Cluster) -> None:
    async def main() -> None:
        victim = next(
            node_id for node_id in (1, 2, 3) if node_id not in (faulty.leader_of("orders"), faulty.controller_id)
        )
        faulty.partition(victim, one_way=True)
        await wait_until(lambda: victim not in isr(faulty, but=victim))
        faulty.heal()
        await wait_until(lambda: victim in isr(faulty))

    run(main())


def test_a_stopped_node_hands_over_leadership_first(faulty: Cluster) -> None:
    async def main() -> None:
        leader = faulty.leader_of("orders")
        faulty.stop(leader)
        assert faulty.leader_of("orders") not in (leader, -1), "others lead before it has stopped"
        await send(faulty, "orders", "1")
        faulty.restart(leader)
        assert await read(faulty, "orders", 1) == ["1"]

    run(main())


def test_the_first_group_starts_with_a_dead_node() -> None:
    async def main() -> None:
        with Cluster(3) as cluster:
            victim = next(node_id for node_id in (1, 2, 3) if node_id != cluster.controller_id)
            cluster.kill(victim)
            await send(cluster, "orders", "1")
            async with Consumer(cluster.bootstrap, group_id="readers", auto_offset_reset="earliest") as consumer:
                consumer.subscribe(["orders"])
                async for record in consumer:
                    assert record.value == b"1"
                    break
                await consumer.commit()
            async with Admin(cluster.bootstrap) as admin:
                for name in ("orders", "__consumer_offsets"):
                    for partition in (await admin.describe_topic(name)).partitions:
                        assert sorted(partition.replicas) == [1, 2, 3]
                        assert victim not in partition.in_sync
            cluster.restart(victim)
            await wait_until(lambda: len(isr(cluster)) == 3)

    run(main())


def test_the_offsets_topic_is_not_created_with_more_replicas_than_registered_brokers() -> None:
    async def main() -> None:
        with Cluster(2, settings={"offsets.topic.replication.factor": "3"}) as cluster:
            async with Admin(cluster.bootstrap, timeout_ms=1_000) as admin:
                with pytest.raises(KafkaError, match=r"offsets\.topic\.replication\.factor=3"):
                    await admin.describe_group("nobody")
                with pytest.raises(KafkaError) as refused:
                    await admin.create_topic("orders", replication_factor=3)
                assert refused.value.code is ErrorCode.invalid_replication_factor

    run(main())


# `moldau cluster`


def moldau(cluster: Cluster, *arguments: str, fails: bool = False) -> Result:
    result = CliRunner().invoke(app, list(arguments), env={"MOLDAU_BOOTSTRAP": cluster.bootstrap})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert (result.exit_code != 0) == fails, result.output
    return result


def rows(result: Result) -> dict[str, list[str]]:
    return {line.split()[0]: line.split() for line in result.stdout.splitlines() if line.split()}


def test_status_shows_nodes_controller_and_partitions(cluster: Cluster) -> None:
    async def main() -> None:
        async with Admin(cluster.bootstrap) as admin:
            await admin.create_topic("shown", partitions=3)

    run(main())
    result = moldau(cluster, "cluster", "status")
    shown = rows(result)
    assert [shown[str(node_id)][3] for node_id in (1, 2, 3)] == ["up"] * 3
    assert shown[str(cluster.controller_id)][4] == "leader"
    assert f"controller  node {cluster.controller_id}, epoch" in result.stdout
    assert "all replicas are in sync" in result.stdout


def test_a_node_is_drained_removed_as_voter_and_unregistered() -> None:
    async def main() -> None:
        with Cluster(4, topics={"orders": 8}) as cluster:
            await send(cluster, "orders", *map(str, range(20)))
            node_id = next(each for each in (1, 2, 3, 4) if each != cluster.controller_id)
            number = str(node_id)
            loop = asyncio.get_running_loop()

            async def ask(*arguments: str, fails: bool = False) -> Result:
                return await loop.run_in_executor(None, lambda: moldau(cluster, *arguments, fails=fails))

            result = await ask("cluster", "unregister", number, "--yes", fails=True)
            assert "is running" in result.output
            assert f"Node {number} has no replicas any more" in (await ask("cluster", "drain", number, "--yes")).stdout
            assert "has no replicas." in (await ask("cluster", "drain", number, "--yes")).stdout
            async with Admin(cluster.bootstrap) as admin:
                topic = await admin.describe_topic("orders")
                assert all(node_id not in each.replicas and len(each.replicas) == 3 for each in topic.partitions)
            await ask("cluster", "remove-voter", number)
            assert "is not a voter" in (await ask("cluster", "remove-voter", number, fails=True)).output
            cluster.stop(node_id)
            await ask("cluster", "unregister", number, "--yes")
            assert number not in rows(await ask("cluster", "status"))
            assert sorted(await read(cluster, "orders", 20), key=int) == list(map(str, range(20)))

    run(main())


def test_a_node_is_added_as_voter(cluster: Cluster) -> None:
    number = str(next(each for each in (1, 2, 3) if each != cluster.controller_id))
    moldau(cluster, "cluster", "remove-voter", number)
    assert rows(moldau(cluster, "cluster", "status"))[number][4] == "observer"
    moldau(cluster, "cluster", "add-voter", number)
    assert rows(moldau(cluster, "cluster", "status"))[number][4] == "voter"
    assert "is already a voter" in moldau(cluster, "cluster", "add-voter", number, fails=True).output


def test_the_command_elects_preferred_leaders(cluster: Cluster) -> None:
    assert "elected" in moldau(cluster, "cluster", "elect-leaders").stdout


def test_an_impossible_drain_is_rejected(cluster: Cluster) -> None:
    run(send(cluster, "everywhere", "1"))
    assert "no other broker can take" in moldau(cluster, "cluster", "drain", "1", "--yes", fails=True).output
    assert "Node 9 does not exist" in moldau(cluster, "cluster", "drain", "9", "--yes", fails=True).output


def test_a_cluster_that_cannot_start_raises_and_cleans_up() -> None:
    settings = {"broker.session.timeout.ms": "100"}
    with pytest.raises(Exception, match=r"broker\.session\.timeout\.ms"):
        Cluster(3, settings=settings).__enter__()


@pytest.mark.moldau(topics={"orders": 2}, nodes=1)
def test_the_fixture_starts_a_cluster(moldau_cluster: Any) -> None:
    assert len(moldau_cluster.nodes) == 1
    assert moldau_cluster.leader_of("orders", 1) == 1
