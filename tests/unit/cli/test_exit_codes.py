"""Exit codes of errors."""

import pytest

from moldau.cli.exit_codes import CommandError, ExitCode, NotFoundError, common_exit_code, exit_code_of
from moldau.client.errors import ConnectionLostError, ErrorCode, KafkaError, RequestTimedOutError


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KafkaError(ErrorCode.invalid_config), ExitCode.FAILED),
        (KafkaError(ErrorCode.unknown_topic_or_partition), ExitCode.NOT_FOUND),
        (KafkaError(ErrorCode.group_id_not_found), ExitCode.NOT_FOUND),
        (KafkaError(ErrorCode.transactional_id_not_found), ExitCode.NOT_FOUND),
        (ConnectionLostError("refused"), ExitCode.UNAVAILABLE),
        (RequestTimedOutError("no response"), ExitCode.UNAVAILABLE),
        (KafkaError(ErrorCode.leader_not_available), ExitCode.UNAVAILABLE),
        (KafkaError(ErrorCode.coordinator_load_in_progress), ExitCode.UNAVAILABLE),
        (KafkaError(ErrorCode.not_coordinator), ExitCode.UNAVAILABLE),
        (KafkaError(ErrorCode.not_controller), ExitCode.UNAVAILABLE),
        (KafkaError(ErrorCode.not_leader_or_follower), ExitCode.UNAVAILABLE),
        (CommandError("no"), ExitCode.FAILED),
        (NotFoundError("no"), ExitCode.NOT_FOUND),
        (RuntimeError("no"), ExitCode.FAILED),
    ],
)
def test_an_error_has_an_exit_code(error: Exception, code: ExitCode) -> None:
    assert exit_code_of(error) is code


def test_the_numbers_are_stable() -> None:
    assert {each.name: int(each) for each in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "NOT_FOUND": 3,
        "UNAVAILABLE": 4,
        "INTERRUPTED": 130,
    }


def test_different_errors_together_are_a_failure() -> None:
    missing, lost = NotFoundError("no"), ConnectionLostError("refused")
    assert common_exit_code([missing, missing]) is ExitCode.NOT_FOUND
    assert common_exit_code([missing, lost]) is ExitCode.FAILED
