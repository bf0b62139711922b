"""Exit codes of commands. docs/cli.md documents them, so they are stable."""

import enum
import signal
from collections.abc import Iterable

from moldau.client.errors import ErrorCode, KafkaError


class ExitCode(enum.IntEnum):
    OK = 0
    FAILED = 1
    USAGE = 2
    """The arguments are invalid. Typer also exits with this code."""
    NOT_FOUND = 3
    """A topic, partition, group, transactional id, node or config that the user named does not exist."""
    UNAVAILABLE = 4
    """The cluster, a leader or a coordinator did not respond in time. The same command may succeed later."""
    INTERRUPTED = 128 + signal.SIGINT


_NOT_FOUND = frozenset(
    {
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.unknown_topic_id,
        ErrorCode.group_id_not_found,
        ErrorCode.transactional_id_not_found,
        ErrorCode.broker_id_not_registered,
    }
)
_UNAVAILABLE = frozenset(
    {
        ErrorCode.network_exception,
        ErrorCode.request_timed_out,
        ErrorCode.leader_not_available,
        ErrorCode.broker_not_available,
        ErrorCode.coordinator_not_available,
        # A failover takes longer than the command waits.
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
        ErrorCode.not_controller,
        ErrorCode.not_leader_or_follower,
    }
)


class CommandError(Exception):
    """The failure of a command. The message is a sentence for the user."""

    exit_code = ExitCode.FAILED


class NotFoundError(CommandError):
    """Something that the user named does not exist. The message has its name."""

    exit_code = ExitCode.NOT_FOUND


def exit_code_of(error: Exception) -> ExitCode:
    if isinstance(error, CommandError):
        return error.exit_code
    if isinstance(error, KafkaError):
        if error.code in _NOT_FOUND:
            return ExitCode.NOT_FOUND
        if error.code in _UNAVAILABLE:
            return ExitCode.UNAVAILABLE
    return ExitCode.FAILED


def common_exit_code(errors: Iterable[Exception]) -> ExitCode:
    """Returns the exit code after several errors: their own if all have the same one, otherwise FAILED."""
    codes = {exit_code_of(error) for error in errors}
    return codes.pop() if len(codes) == 1 else ExitCode.FAILED
