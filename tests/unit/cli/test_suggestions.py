"""Names that users may have meant."""

import pytest

from moldau.cli.suggestions import closest_name, missing_error

KNOWN = ["orders", "order-items", "payments", "__consumer_offsets"]


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("ordres", "orders"),
        ("ORDERS", "orders"),
        ("order-item", "order-items"),
        ("_consumer_offsets", "__consumer_offsets"),
        ("shipments-of-2026", None),
        ("", None),
    ],
)
def test_the_most_similar_name_is_found(misspelt: str, meant: str | None) -> None:
    assert closest_name(misspelt, KNOWN) == meant


def test_an_error_suggests_the_name_or_the_list() -> None:
    assert str(missing_error("topic", "ordres", KNOWN)) == "Topic ordres does not exist. Did you mean orders?"
    expected = "Group billing does not exist. Run `moldau group list` to see the existing groups."
    assert str(missing_error("group", "billing", [])) == expected


def test_control_characters_of_a_name_do_not_reach_the_terminal() -> None:
    assert r"Topic \u001b[2J does not exist" in str(missing_error("topic", "\x1b[2J", [])).replace('"', "")
