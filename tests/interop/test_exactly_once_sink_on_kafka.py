"""Delivery exactly once to Apache Kafka: tasks send their rows to the driver, which writes them in one transaction."""

from collections.abc import Iterator

import pytest
from apache_kafka import ApacheKafka, available

from moldau.spark.loop_thread import event_loop_thread

# These tests are collected here with the broker below.
from unit.spark.sink.test_exactly_once import (  # noqa: F401
    STAGED,
    Query,
    query,
    test_a_batch_of_a_driver_that_died_before_the_commit_is_replayed,
    test_a_commit_can_be_repeated,
    test_a_replayed_batch_is_not_visible_twice,
    test_a_row_that_cannot_be_written_fails_the_task_and_the_next_attempt_succeeds,
    test_an_abort_after_the_commit_changes_nothing,
    test_an_aborted_batch_is_replayed,
    test_an_older_checkpoint_is_refused,
    test_attempts_that_spark_did_not_choose_are_not_visible,
    test_batches_without_rows,
    test_rows_are_visible_after_the_commit,
    test_two_drivers_write_a_batch_once,
)


@pytest.fixture(scope="module", params=[2, 1], ids=["TV2", "TV1"])
def broker(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    features = [f"transaction.version={request.param}"]
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), heap="512m", features=features) as started:
        yield started
        event_loop_thread().close()


@pytest.fixture
def design() -> str:
    return STAGED


def test_tasks_send_their_rows_to_the_driver(query: Query) -> None:  # noqa: F811
    message = query.write(0, "a")
    assert message.member is None
    assert [each.topic for each in message.sections] == [query.topic]
    assert query.uncommitted_values() == []
