"""`kill -9` of leaders under load: clients continue by themselves, and nothing acknowledged is lost, duplicated or
reordered. MOLDAU_LEADER_KILLS sets the number of kills (3). The length of write pauses is printed, not asserted."""

import os
import time
from pathlib import Path

import pytest

from moldau.testing.simulation.checkers.history import History
from moldau.testing.simulation.checkers.records import check_records
from support.broker_process_cluster import BrokerProcessCluster
from support.log_reader import all_records
from support.steady_writer import SteadyWriter, format_pauses

pytestmark = pytest.mark.clients

KILLS = int(os.environ.get("MOLDAU_LEADER_KILLS", "3"))
PARTITIONS = 6


def test_writes_resume_after_leaders_are_killed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    history = History()
    paused: list[float] = []
    with BrokerProcessCluster(tmp_path) as cluster:
        cluster.create_topic("kills", partitions=PARTITIONS)
        cluster.wait_in_sync("kills")
        writer = SteadyWriter(cluster.bootstrap, "kills", PARTITIONS, history)
        writer.wait_resumed(range(PARTITIONS), time.monotonic())
        for number in range(KILLS):
            led = {index: each.leader for index, each in cluster.metadata().topics["kills"].partitions.items()}
            victim = led[number % PARTITIONS]
            killed_at = time.monotonic()
            cluster.kill(victim)
            paused.append(writer.wait_resumed([at for at, leader in led.items() if leader == victim], killed_at))
            cluster.start(victim)
            cluster.wait_in_sync("kills")
        writer.finish()
        for record in all_records(cluster.bootstrap, "kills"):
            history.logs.setdefault(("kills", record.partition), []).append(  # type: ignore[attr-defined]
                (record.offset, record.value or b"")
            )
    acknowledged = sum(send.is_acknowledged for send in history.sends)
    with capsys.disabled():
        print(f"\n{KILLS} kills of a leader, {acknowledged} writes acknowledged; {format_pauses(paused)}")
    assert check_records(history) == []
    assert not writer.failures
    assert acknowledged == len(history.sends)
