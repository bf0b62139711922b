"""The YAML of generated files, read by a YAML library."""

import string
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from moldau.observe.yaml_text import format_yaml

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
WORDS = st.text(string.ascii_letters + string.digits + "._-:~/ ", max_size=6)
SCALARS = st.one_of(TEXTS, WORDS, st.integers(), st.booleans())
DOCUMENTS = st.dictionaries(
    st.one_of(TEXTS, WORDS),
    st.recursive(
        SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(WORDS, inner, max_size=3))
    ),
    min_size=1,
    max_size=3,
)


@given(DOCUMENTS)
def test_any_document_is_read_as_it_was_written(document: dict[str, Any]) -> None:
    assert yaml.safe_load(format_yaml(document)) == document


@pytest.mark.parametrize(
    "text",
    ["yes", "Off", "null", "~", "1", "1e3", ".5", "_1", "0x1f", "12:30", "2026-01-01", "- a", "a: b", "#", "a #b"],
)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert yaml.safe_load(format_yaml({"value": text, text: [text, {text: text}]})) == {
        "value": text,
        text: [text, {text: text}],
    }


def test_plain_words_are_not_quoted() -> None:
    assert format_yaml({"severity": "critical", "path": "/var/lib/moldau", "lists": [["a"], {}]}) == (
        "severity: critical\npath: /var/lib/moldau\nlists:\n  - - a\n  - {}\n"
    )
