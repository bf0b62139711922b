"""Java's way to say who logs in: `some.LoginModule required name="value" ...;`. No error quotes it, for its secrets."""

import re
from collections.abc import Mapping
from typing import NamedTuple

_FLAGS = ("required", "requisite", "sufficient", "optional")
_TOKEN = re.compile(
    r"""\s+ | //[^\n]* | /\*.*?\*/      # between tokens
    | "(?P<double>(?:[^"\\\n]|\\.)*)"
    | '(?P<single>(?:[^'\\\n]|\\.)*)'
    | (?P<sign>[=;])
    | (?P<word>[^\s="';]+)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3]?[0-7]{1,2}|.)", re.DOTALL)
_ESCAPE_CHARACTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class LoginModule(NamedTuple):
    module: str
    options: Mapping[str, str]


def parse_jaas_config(text: str) -> LoginModule:
    """The one login module in the text of `sasl.jaas.config`; raises ValueError."""
    tokens = _tokenize(text)
    if len(tokens) < 3 or tokens[1].lower() not in _FLAGS:
        raise ValueError('sasl.jaas.config is `some.LoginModule required username="..." password="...";`')
    if tokens.count(";") != 1 or tokens[-1] != ";":
        raise ValueError("sasl.jaas.config is one login module, and ends with a semicolon")
    options = tokens[2:-1]
    if len(options) % 3 or any(sign != "=" for sign in options[1::3]):
        raise ValueError("the options in sasl.jaas.config are name=value, the value in quotes")
    names, values = options[0::3], options[2::3]
    if "=" in names or "=" in values:
        raise ValueError("an option in sasl.jaas.config lacks its name or its value")
    return LoginModule(
        tokens[0],
        {name: value.removeprefix(_QUOTED_PREFIX) for name, value in zip(names, values, strict=True)},
    )


_QUOTED_PREFIX = "\0"
"""Before what was in quotes, so that it is not taken for a sign."""


def _tokenize(text: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise ValueError("a quote in sasl.jaas.config is not closed")
        position = found.end()
        quoted = found["double"] if found["double"] is not None else found["single"]
        if quoted is not None:
            tokens.append(_QUOTED_PREFIX + _ESCAPE.sub(_unescape, quoted))
        elif found["sign"] or found["word"]:
            tokens.append(found["sign"] or found["word"])
    return tokens


def _unescape(found: re.Match[str]) -> str:
    escaped = found[1]
    if escaped[0] in "01234567":
        return chr(int(escaped, 8))
    return _ESCAPE_CHARACTERS.get(escaped, escaped)
