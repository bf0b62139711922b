"""Every domain error has an HTTP status."""

import pytest

from moldau import errors
from moldau.error_codes import ERROR_CODES
from moldau.error_statuses import ERROR_STATUSES, error_status
from moldau.errors import MoldauError, NotLeaderOrFollowerError, TopicExistsError


def test_every_status_is_an_error_status() -> None:
    for kind in ERROR_CODES:
        error = kind("test")
        assert 400 <= error_status(error) < 600
        assert error_status(error) != 500, f"{kind.__name__} is an expected error"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.InvalidTopicError("x"), 400),
        (errors.InvalidConfigError("x"), 400),
        (errors.UnknownTopicOrPartitionError("x"), 404),
        (TopicExistsError("x"), 409),
        (errors.RecordTooLargeError("x"), 413),
        (NotLeaderOrFollowerError("x"), 421),
        (errors.NotEnoughReplicasError("x"), 503),
        (errors.RequestTimedOutError("x"), 503),
        (errors.StorageError("x"), 507),
        (MoldauError("x"), 503),
    ],
)
def test_statuses(error: MoldauError, status: int) -> None:
    assert error_status(error) == status


def test_a_subclass_has_the_status_of_its_base() -> None:
    class Special(TopicExistsError):
        pass

    assert error_status(Special("x")) == 409


def test_the_table_names_each_error_once() -> None:
    assert set(ERROR_STATUSES) <= set(ERROR_CODES)
