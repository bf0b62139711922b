"""The client's errors carry Kafka's codes."""

import subprocess
import sys

import pytest

from moldau.client.errors import ConnectionLostError, ErrorCode, KafkaError, RequestTimedOutError, raise_for_code


def test_an_error_shows_its_code_and_message() -> None:
    error = KafkaError(16, "the group moved")
    assert error.code is ErrorCode.not_coordinator
    assert str(error) == "NOT_COORDINATOR: the group moved"
    assert error.is_retriable
    assert not KafkaError(ErrorCode.invalid_topic_exception).is_retriable


def test_a_code_of_a_newer_broker_keeps_its_number() -> None:
    error = KafkaError(9_999, "new")
    assert error.code is ErrorCode.unknown_server_error
    assert str(error) == "ERROR_9999: new"


def test_lost_connections_and_timeouts_may_be_retried() -> None:
    assert ConnectionLostError("gone").is_retriable
    assert RequestTimedOutError("late").is_retriable


def test_check_raises_for_all_but_success() -> None:
    raise_for_code(0)
    with pytest.raises(KafkaError, match="UNKNOWN_MEMBER_ID: who"):
        raise_for_code(25, "who")


def test_the_package_imports_lazily() -> None:
    script = (
        "import sys, moldau.client\n"
        "print('moldau.client.errors' in sys.modules)\n"
        "moldau.client.KafkaError\n"
        "print('moldau.client.errors' in sys.modules, 'moldau.client.producer.producer' in sys.modules)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True", "False"]


def test_every_exported_name_can_be_imported() -> None:
    import moldau.client

    for name in moldau.client.__all__:
        assert getattr(moldau.client, name).__name__ == name
    with pytest.raises(AttributeError):
        moldau.client.Nothing  # noqa: B018
