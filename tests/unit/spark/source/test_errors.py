"""Errors for authors of queries, and calls from Spark's threads to the event loop."""

import asyncio
import os

import pytest

from moldau.client.errors import ConnectionLostError, ErrorCode, KafkaError, RequestTimedOutError
from moldau.spark import loop_thread
from moldau.spark.errors import DataLossError, OptionError, SparkSourceError, find_user_message, user_facing_errors


@pytest.mark.parametrize("error", [ConnectionLostError("refused"), RequestTimedOutError("late")])
def test_a_missing_response_is_reported_with_the_address_and_a_hint(error: KafkaError) -> None:
    with (
        pytest.raises(SparkSourceError, match=r"cluster at host:1 .*Check that a broker is running there"),
        user_facing_errors("host:1"),
    ):
        raise error


def test_cluster_errors_are_reported_with_the_address() -> None:
    denied = KafkaError(ErrorCode.topic_authorization_failed, "the topic 'orders'")
    with (
        pytest.raises(SparkSourceError, match="host:1 returned an error: TOPIC_AUTHORIZATION_FAILED"),
        user_facing_errors("host:1"),
    ):
        raise denied


def test_user_errors_are_unchanged_and_bugs_are_not_hidden() -> None:
    with pytest.raises(OptionError, match="as it was"), user_facing_errors("host:1"):
        raise OptionError("as it was")
    with pytest.raises(ZeroDivisionError), user_facing_errors("host:1"):
        _ = 1 / 0


def test_tracebacks_are_hidden_only_in_spark_workers_and_for_user_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    with pytest.raises(ZeroDivisionError), user_facing_errors(""):
        _ = 1 / 0
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    monkeypatch.delenv("SPARK_PYTHON_RUNTIME")
    with pytest.raises(DataLossError), user_facing_errors(""):
        raise DataLossError("gone")
    assert "SPARK_HIDE_TRACEBACK" not in os.environ
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER")
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(DataLossError), user_facing_errors(""):
        raise DataLossError("gone")
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"


@pytest.mark.parametrize(
    "text",
    [
        "[PYTHON_DATA_SOURCE_ERROR] Failed: moldau.spark.errors.OptionError: what it says\n SQLSTATE: 38000",
        "Job aborted: moldau.spark.errors.DataLossError: what it says\n\n\tat org.apache.spark.Runner(x.scala:1)",
        "moldau.spark.errors.SparkSourceError: what it says",
    ],
)
def test_a_user_message_is_found_in_sparks_error(text: str) -> None:
    assert find_user_message(RuntimeError(text)) == "what it says"


def test_other_errors_have_no_user_message() -> None:
    assert find_user_message(ValueError("no such column")) is None


def test_a_process_has_one_event_loop_thread_until_closed_or_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    first = loop_thread.event_loop_thread()
    assert loop_thread.event_loop_thread() is first
    assert first.run(asyncio.sleep(0, "done")) == "done"
    first.close()
    second = loop_thread.event_loop_thread()
    assert second is not first
    monkeypatch.setattr(os, "getpid", lambda: -1)
    third = loop_thread.event_loop_thread()
    assert third is not second
    third.close()
    second.close()


def test_exceptions_in_the_loop_are_raised_in_the_calling_thread() -> None:
    async def fails() -> None:
        raise KafkaError(ErrorCode.corrupt_message, "x")

    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        loop_thread.event_loop_thread().run(fails())
    loop_thread.event_loop_thread().close()
