"""Values of options written as text: what is accepted, and what the error says is accepted."""

from collections.abc import Callable

import pytest

from moldau.settings.option_parser import (
    OptionValueError,
    did_you_mean,
    parse_boolean,
    parse_choice,
    parse_duration,
    parse_integer,
    suggest_names,
)


@pytest.mark.parametrize(
    ("text", "shown", "milliseconds"),
    [
        ("1 second", "1 second", 1_000),
        ("500ms", "500 milliseconds", 500),
        ("10 MINUTES", "10 minutes", 600_000),
        ("2h", "2 hours", 7_200_000),
        ("5000us", "5000 microseconds", 5),
        ("1.5 s", "1.5 seconds", 1_500),
    ],
)
def test_durations_are_shown_as_spark_writes_intervals(text: str, shown: str, milliseconds: int) -> None:
    duration = parse_duration(text)
    assert (str(duration), duration.milliseconds) == (shown, milliseconds)


def test_a_number_without_unit_has_the_default_unit() -> None:
    assert parse_duration("250", "ms").milliseconds == 250
    with pytest.raises(OptionValueError):
        parse_duration("250")


@pytest.mark.parametrize(
    ("parse", "text", "accepted"),
    [
        (parse_boolean, "maybe", "true or false"),
        (parse_integer, "1e3", "an integer"),
        (lambda text: parse_integer(text, 1), "0", "an integer, 1 or more"),
        (parse_duration, "1 fortnight", "a duration such as 500ms, 10 seconds or 1 hour"),
        (lambda text: parse_choice(text, ("a", "b")), "c", "a or b"),
        (lambda text: parse_choice(text, ("a", "b", "c")), "d", "one of a, b, c"),
    ],
)
def test_an_error_says_what_is_accepted(parse: Callable[[str], object], text: str, accepted: str) -> None:
    with pytest.raises(OptionValueError) as raised:
        parse(text)
    assert str(raised.value) == accepted


def test_a_similar_name_is_suggested_in_its_documented_case() -> None:
    assert did_you_mean("maxoffsetpertrigger", ["maxOffsetsPerTrigger"]) == "; did you mean maxOffsetsPerTrigger?"
    assert suggest_names("zzz", ["topic", "includeHeaders"]) == "; there are topic, includeHeaders"
