"""A stateful query on three nodes whose driver, Python workers, executors and nodes are killed with SIGKILL in turn:
for readers with read_committed, the topic has every row exactly once, written with a state that has every earlier row
exactly once. The killed nodes are any one, the leader of an output partition, and the coordinator of the query's
transactions. MOLDAU_SPARK_KILLS sets how often (5)."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'moldau[spark]'")

from kills.clusters import LOCAL, MoldauNodes, standalone_master
from kills.stateful_check import check, kills_and_seed
from kills.stateful_harness import StatefulKills

from support.broker_process_cluster import BrokerProcessCluster

pytestmark = pytest.mark.spark

KILLS, SEED = kills_and_seed(5)


def test_a_stateful_query_on_a_local_master_writes_every_row_exactly_once(tmp_path: Path, only_moldau: None) -> None:
    with BrokerProcessCluster(tmp_path) as nodes:
        check(StatefulKills(tmp_path, SEED, MoldauNodes(nodes), LOCAL), KILLS)


@pytest.mark.slow
def test_a_stateful_query_on_a_cluster_with_speculation_writes_every_row_exactly_once(
    tmp_path: Path, only_moldau: None
) -> None:
    with BrokerProcessCluster(tmp_path) as nodes, standalone_master(tmp_path / "spark") as master:
        check(StatefulKills(tmp_path, SEED, MoldauNodes(nodes), master), KILLS)
