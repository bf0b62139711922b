"""Published progress of pipelines: `/v1/pipelines`, `/metrics` and `moldau pipeline list --bootstrap`."""

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from moldau.cli.commands import app
from moldau.client import Producer
from moldau.pipelines.definition import PipelineDefinition
from moldau.pipelines.query_report import REPORT_TOPIC
from moldau.pipelines.runtime.progress import Progress, QueryState, QueryStatus
from moldau.pipelines.runtime.report_publisher import CLOSE_TIMEOUT_S, ReportPublisher
from moldau.pipelines.runtime.state_directory import RunRecord
from moldau.testing.cluster import Cluster
from support.http_v1 import HttpBroker, http_broker
from support.ports import free_port

RECORD = RunRecord(
    name="revenue",
    pid=7,
    process_start="1",
    host="alpha",
    started="2026-01-31T12:00:00.000Z",
    file="",
    file_hash="",
    master="local[*]",
    bootstrap="",
    generation=2,
    checkpoints="",
)


def pipeline(bootstrap: str, *, publishes: bool = True) -> PipelineDefinition:
    settings = {"request.timeout.ms": "1000"}
    return PipelineDefinition("revenue", (), (), (), bootstrap=bootstrap, publish_progress=publishes, kafka=settings)


def state(query: str, status: QueryStatus, *, batch: int = 3, lag: int | None = 40, **more: str) -> QueryState:
    last = Progress(query, "2026-01-31T12:00:01.000Z", batch, 100, 10.0, 20.5, 1_500, lag)
    return QueryState(query, status, rows=1_000 + batch, last=last, lag=lag, **more)  # type: ignore[arg-type]


def publish(bootstrap: str, *states: QueryState) -> None:
    ReportPublisher(pipeline(bootstrap), RECORD).close(states)


@pytest.fixture(scope="module")
def broker() -> Iterator[HttpBroker]:
    with http_broker() as running:
        yield running


def metrics(address: str | None) -> list[str]:
    text = httpx.get(f"http://{address}/metrics", timeout=60).text
    return [line for line in text.splitlines() if line.startswith("moldau_pipeline_")]


def address(broker: HttpBroker) -> str:
    return f"{broker.api.base_url.host}:{broker.api.base_url.port}"


def test_published_queries_are_listed_everywhere(broker: HttpBroker) -> None:
    assert broker.api.get("/pipelines").json() == {"queries": []}
    assert metrics(address(broker)) == []

    publish(broker.bootstrap, state("table", QueryStatus.RUNNING))
    publish(broker.bootstrap, state("table", QueryStatus.WAITING, batch=4, lag=0))
    publish(broker.bootstrap, state("alerts", QueryStatus.FAILED, lag=None, error="no such column"))

    alerts, table = broker.api.get("/pipelines").json()["queries"]
    assert (alerts["query"], alerts["state"], alerts["error"], alerts["lag"]) == (
        "alerts",
        "failed",
        "no such column",
        None,
    )
    assert (table["pipeline"], table["state"], table["rows"], table["lag"]) == ("revenue", "waiting", 1_004, 0)
    assert (table["host"], table["generation"], table["batch"], table["batch_ms"]) == ("alpha", 2, 4, 1_500)
    found = metrics(address(broker))
    assert 'moldau_pipeline_query_state{pipeline="revenue",query="table",state="waiting"} 1' in found
    assert 'moldau_pipeline_query_state{pipeline="revenue",query="alerts",state="failed"} 1' in found
    assert 'moldau_pipeline_query_lag_records{pipeline="revenue",query="table"} 0' in found
    assert 'moldau_pipeline_query_process_rate{pipeline="revenue",query="table"} 20.5' in found
    assert 'moldau_pipeline_query_batch_seconds{pipeline="revenue",query="table"} 1.5' in found
    listed = CliRunner().invoke(app, ["pipeline", "list", "--bootstrap", broker.bootstrap])
    assert listed.exit_code == 0, listed.output
    assert [line.split()[:3] for line in listed.stdout.splitlines()[1:]] == [
        ["revenue", "alerts", "failed"],
        ["revenue", "table", "waiting"],
    ]


def test_records_of_others_in_the_topic_are_ignored(broker: HttpBroker) -> None:
    publish(broker.bootstrap, state("table", QueryStatus.DONE))

    async def produce() -> None:
        async with Producer(broker.bootstrap) as producer:
            for key, value in ((b"revenue/table", b"{"), (None, b"x"), (b"k", b'{"pipeline": "\\ud800"}')):
                await producer.send(REPORT_TOPIC, value, key=key or b"none", partition=0)

    asyncio.run(produce())
    assert any('query="table",state="done"' in line for line in metrics(address(broker)))
    assert "table" in [each["query"] for each in broker.api.get("/pipelines").json()["queries"]]


def test_reports_are_limited_in_number(broker: HttpBroker) -> None:
    publisher = ReportPublisher(pipeline(broker.bootstrap), RECORD)
    for batch in range(500):
        publisher.publish([state("fast", QueryStatus.RUNNING, batch=batch)])
    publisher.close([state("fast", QueryStatus.STOPPED, batch=500)])

    assert end_offset(broker, "fast") <= 3
    [report] = [each for each in broker.api.get("/pipelines").json()["queries"] if each["query"] == "fast"]
    assert (report["state"], report["batch"]) == ("stopped", 500)


def end_offset(broker: HttpBroker, query: str) -> int:
    """Returns the number of reports of a query in the topic."""
    url = f"/topics/{REPORT_TOPIC}/partitions/0/records"
    records = broker.api.get(url, params={"offset": 0, "max_records": 1000}).json()["records"]
    return sum(query in str(each["key"]) for each in records)


def test_a_pipeline_can_keep_its_progress_to_itself() -> None:
    with http_broker() as broker:
        ReportPublisher(pipeline(broker.bootstrap, publishes=False), RECORD).close([state("t", QueryStatus.DONE)])
        assert REPORT_TOPIC not in [each["name"] for each in broker.api.get("/topics").json()["topics"]]


def test_a_cluster_that_does_not_respond_delays_no_run() -> None:
    started_s = time.monotonic()
    publisher = ReportPublisher(pipeline(f"127.0.0.1:{free_port()}"), RECORD)
    publisher.publish([state("table", QueryStatus.RUNNING)])
    publisher.close([state("table", QueryStatus.DONE)])
    assert time.monotonic() - started_s < 2 * CLOSE_TIMEOUT_S


def test_an_unexpected_error_of_the_client_fails_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    async def open_producer(publisher: ReportPublisher) -> Producer:
        raise RuntimeError("unexpected")

    monkeypatch.setattr(ReportPublisher, "_open", open_producer)
    ReportPublisher(pipeline("127.0.0.1:9092"), RECORD).close([state("table", QueryStatus.DONE)])


def test_one_node_shows_the_metrics_of_pipelines_also_after_its_leader_moves(tmp_path: Path) -> None:
    with Cluster(3, settings={"http.port": "0"}) as cluster:
        publish(cluster.bootstrap, state("table", QueryStatus.RUNNING))
        leader = cluster.leader_of(REPORT_TOPIC)
        nodes = dict(cluster.nodes)

        def owners() -> list[int]:
            return [node_id for node_id, node in cluster.nodes.items() if metrics(node.http_address)]

        assert owners() == [leader]
        cluster.kill(leader)
        wait_for(lambda: cluster.leader_of(REPORT_TOPIC) not in (-1, leader))
        wait_for(lambda: owners() == [cluster.leader_of(REPORT_TOPIC)])
        survivor = nodes[cluster.leader_of(REPORT_TOPIC)]
        assert any('query="table",state="running"' in line for line in metrics(survivor.http_address))


def wait_for(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    async def wait() -> None:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.05)

    asyncio.run(wait())
