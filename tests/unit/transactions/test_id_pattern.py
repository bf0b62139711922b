"""Patterns for transactional ids: the syntax of Java, the result of Python's `re`, and linear time."""

import re
import time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moldau.errors import InvalidRegularExpressionError
from moldau.transactions.id_pattern import IdPattern


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("orders", ["orders"], ["order", "orders-1", "my-orders", ""]),
        ("orders.*", ["orders", "orders-1"], ["my-orders", "orders\n1"]),
        ("", [""], ["a"]),
        ("a|b|", ["a", "b", ""], ["ab"]),
        ("(a|bc)+d?", ["a", "bca", "abcd"], ["", "d", "ad!"]),
        ("(?:a(?<name>b)c)*", ["", "abc", "abcabc"], ["ab"]),
        (r"\d{2,3}", ["12", "123"], ["1", "1234", "1a", "٣٣"]),
        (r"x{2}", ["xx"], ["x", "xxx"]),
        (r"x{2,}", ["xx", "xxxxx"], ["x"]),
        (r"x{0}y", ["y"], ["xy"]),
        (r"[a-c_\d-]+", ["a-b_9"], ["d", ""]),
        (r"[^a-c]", ["d", "é"], ["a", ""]),
        (r"[]a]+", ["a]"], ["b"]),
        (r"[.*+]", [".", "*", "+"], ["a"]),
        (r"\w+\.\s\D\W\S", ["a_1. x-y"], ["a_1. 1-y"]),
        (r"\Qa.b*\E+", ["a.b*"], ["aXb"]),
        (r"a\Q[", ["a["], ["a"]),
        (r"\x41\u00e9", ["Aé"], ["A"]),
        (r"^a$", ["a"], ["ab"]),
        (r"\Aa\z", ["a"], ["ab"]),
        (r"a^b", [], ["ab", "a^b"]),
        (r"(^|x)a", ["a", "xa"], ["ya"]),
        (r"a*?b+?", ["b", "aabb"], ["a"]),
        (r"(a*)*b", ["b", "aab"], ["a"]),
        ("řeka", ["řeka"], ["reka"]),
        ("}]", ["}]"], []),
    ],
)
def test_patterns(pattern: str, matching: list[str], other: list[str]) -> None:
    compiled = IdPattern(pattern)
    assert [text for text in matching if not compiled.matches(text)] == []
    assert [text for text in other if compiled.matches(text)] == []


@pytest.mark.parametrize(
    "pattern",
    [
        *("(", ")", "a)", "[", "[a", "[]", "*", "+a", "?", "a**", "{", "{1}", "a{", "a{1", "a{b}", "a{2,1}", "a{,2}"),
        *("\\", r"[\]", "[z-a]", r"[\d-z]", r"\xg1", r"\u12", "(?<n", "(?", "a{9999}", "a{99999999999}"),
        # Not supported.
        *("a*+", "(?=a)", "(?!a)", "(?<=a)", "(?i)a", r"(a)\1", r"\bword", r"\p{L}", "[a&&b]", "[a[b]]"),
        # Too large.
        *("(" * 200 + ")" * 200, "(a{100}){100}", "a" * 2_000, "[b" + "a" * 900 + "]{3}", "[a" + "-z" * 900 + "]"),
        "(?<" + "n" * 1_000 + ">a)",
    ],
)
def test_invalid_patterns(pattern: str) -> None:
    with pytest.raises(InvalidRegularExpressionError):
        IdPattern(pattern)


def test_hostile_patterns_take_no_exponential_time() -> None:
    started = time.monotonic()
    for pattern in ("(a+)+$", "(a|a)*b", "(a*)*b", "(a?){50}a{50}", "(.*)*x", "((a{0,10}){0,10})"):
        IdPattern(pattern).matches("a" * 200 + "!")
    assert time.monotonic() - started < 10


ATOMS = st.sampled_from(["a", "b", "c", ".", "[ab]", "[^a]", r"\d", r"\w", "-", r"\."])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=2, max_size=3).map(lambda each: f"({'|'.join(each)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,1}", "{1,}"])).map(
            lambda each: f"(?:{each[0]}){each[1]}"
        ),
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(pattern=PATTERNS, text=st.text("abc1-.", max_size=8))
def test_the_result_is_that_of_python(pattern: str, text: str) -> None:
    expected = re.fullmatch(pattern, text, re.ASCII) is not None
    try:
        compiled = IdPattern(pattern)
    except InvalidRegularExpressionError:
        assume(False)
    assert compiled.matches(text) == expected
