"""Every domain error has a Kafka code, and bugs have none of them."""

import ast
import importlib
from pathlib import Path

import pytest

import moldau
from moldau import errors
from moldau.error_codes import ERROR_CODES, ErrorCode, error_code, error_message
from moldau.errors import MoldauError, StorageError, TopicExistsError
from moldau.partitions.partition import DivergingEpochError

SOURCE = Path(moldau.__file__).parent
NOT_CODES = {DivergingEpochError}
"""Answers that Fetch gives in a field of their own."""


def domain_errors() -> list[type[MoldauError]]:
    """All subclasses of MoldauError in the source, also those in modules that no test has imported."""
    known = {name for name, each in vars(errors).items() if isinstance(each, type)} & {
        each.__name__ for each in _subclasses(MoldauError)
    } | {"MoldauError"}
    for path in sorted(SOURCE.rglob("*.py")):
        classes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)]
        if any(_name(base) in known for each in classes for base in each.bases):
            importlib.import_module(".".join(("moldau", *path.relative_to(SOURCE).with_suffix("").parts)))
    return _subclasses(MoldauError)


def _subclasses(kind: type[MoldauError]) -> list[type[MoldauError]]:
    return [each for child in kind.__subclasses__() for each in (child, *_subclasses(child))]


def _name(base: ast.expr) -> str:
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def test_every_domain_error_has_a_code() -> None:
    found = domain_errors()
    assert len(found) > 25
    ours = [each for each in found if each.__module__.startswith("moldau")]
    without = [each for each in ours if not ERROR_CODES.keys() & set(each.__mro__)]
    assert [each.__qualname__ for each in without if each not in NOT_CODES] == []


def test_no_domain_error_maps_to_success_or_unknown_server_error() -> None:
    assert ErrorCode.unknown_server_error not in ERROR_CODES.values()
    assert ErrorCode.none not in ERROR_CODES.values()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopicExistsError("there"), 36),
        (StorageError("disk"), 56),
        (errors.InvalidTopicError("?"), 17),
        (errors.UnknownTopicOrPartitionError("?"), 3),
        (errors.UnknownTopicIdError("?"), 100),
        (errors.OutOfOrderSequenceError("?"), 45),
        (errors.FencedLeaderEpochError("?"), 74),
        (errors.UnknownLeaderEpochError("?"), 75),
        (errors.RecordTooLargeError("?"), 10),
        (errors.InvalidConfigError("?"), 40),
        (errors.PolicyViolationError("?"), 44),
        (None, 0),
    ],
)
def test_codes_are_kafkas_numbers(error: MoldauError | None, code: int) -> None:
    assert error_code(error) == code
    assert type(error_code(error)) is int


def test_a_subclass_has_the_code_of_its_base_class() -> None:
    class TornTailError(StorageError):
        pass

    assert error_code(TornTailError("torn")) == 56


def test_a_bug_is_an_unknown_server_error_without_message() -> None:
    assert error_code(KeyError("secret")) == -1
    assert error_message(KeyError("secret")) is None


def test_an_error_message_is_sent_and_an_empty_one_is_null() -> None:
    assert error_message(TopicExistsError("Topic 'a' already exists.")) == "Topic 'a' already exists."
    assert error_message(TopicExistsError()) is None
    assert error_message(None) is None
