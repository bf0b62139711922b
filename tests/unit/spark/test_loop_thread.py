"""Objects cached for tasks are closed with the event loop thread."""

import pyarrow as pa

from moldau.client.net.cluster import Cluster
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.sink.columns import SinkColumns
from moldau.spark.sink.options import parse_topic_options
from moldau.spark.sink.task_writer import write_rows
from moldau.testing import Broker


def test_a_new_event_loop_thread_connects_again() -> None:
    with Broker() as broker:
        gate = event_loop_thread()
        cluster = gate.run(gate.cluster({"bootstrap": broker.bootstrap}))
        assert gate.run(gate.cluster({"bootstrap": broker.bootstrap})) is cluster
        gate.close()
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
        (producer,) = gate.producers.values()
        gate.close()
        assert producer._is_closed
        write_rows(iter([rows]), options, SinkColumns(0))
        event_loop_thread().close()
