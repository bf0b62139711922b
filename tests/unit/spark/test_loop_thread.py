"""Objects cached for tasks are closed with the event loop thread."""

import pyarrow as pa

from moldau.client.net.cluster import Cluster
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.sink import task_writer
from moldau.spark.sink.columns import SinkColumns
from moldau.spark.sink.options import parse_topic_options
from moldau.spark.sink.task_writer import write_rows
from moldau.testing import Broker


def test_close_callbacks_run_before_clusters_are_closed() -> None:
    ended: list[str] = []
    with Broker() as broker:
        gate = event_loop_thread()
        cluster = gate.run(gate.cluster({"bootstrap": broker.bootstrap}))

        async def end(name: str) -> None:
            await cluster.refresh()
            ended.append(name)

        gate.on_close(lambda: end("first"))
        gate.on_close(lambda: end("second"))
        gate.close()
        assert ended == ["second", "first"]
        gate = event_loop_thread()
        again: Cluster = gate.run(gate.cluster({"bootstrap": broker.bootstrap}))
        assert again is not cluster
        gate.close()


def test_producers_are_closed_with_the_event_loop_thread() -> None:
    with Broker(topics=["t"]) as broker:
        options = parse_topic_options({"kafka.bootstrap.servers": broker.bootstrap, "topic": "t"})
        rows = pa.record_batch({"value": [b"a"]})
        write_rows(iter([rows]), options, SinkColumns(0))
        gate = event_loop_thread()
        assert [kept for kept, _ in task_writer._producers if kept is gate]
        gate.close()
        assert [kept for kept, _ in task_writer._producers if kept is gate] == []
        write_rows(iter([rows]), options, SinkColumns(0))
        event_loop_thread().close()
