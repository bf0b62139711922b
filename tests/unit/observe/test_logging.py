"""Text and JSON log lines."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from moldau.observe.logging import configure, get_logger

NOON_MS = 1_700_000_000_123


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger("moldau")
    before = (root.handlers[:], root.level, root.propagate)
    yield io.StringIO()
    root.handlers[:], root.propagate = before[0], before[2]
    root.setLevel(before[1])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_line_has_time_level_message_and_fields(stream: io.StringIO) -> None:
    configure(clock=lambda: NOON_MS, stream=stream)
    get_logger("controller").info("topic created", topic="orders", partitions=3, internal=False, rack=None)
    expected = "2023-11-14 22:13:20.123 INFO    topic created topic=orders partitions=3 internal=false rack=null\n"
    assert stream.getvalue() == expected


def test_without_a_clock_lines_have_no_timestamp(stream: io.StringIO) -> None:
    configure(stream=stream)
    get_logger("moldau.partitions").warning("slow", what=object(), error=ValueError("no"), nothing=KeyError())
    assert stream.getvalue() == 'WARNING slow what=object error="ValueError: no" nothing=KeyError\n'


def test_data_from_clients_cannot_forge_lines(stream: io.StringIO) -> None:
    configure(stream=stream)
    get_logger("requests").info("hello\nERROR forged", client="a\nERROR b", text='say "x"', empty="", colour="\x1b[31m")
    (line,) = stream.getvalue().splitlines()
    fields = r'client="a\nERROR b" text="say \"x\"" empty="" colour="\u001b[31m"'
    assert line == rf'INFO    "hello\nERROR forged" {fields}'


def test_disabled_levels_are_not_formatted(stream: io.StringIO) -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("formatted")

    configure(level="warning", stream=stream)
    log = get_logger("logs")
    log.debug("one", cost=Costly())
    log.info("two", cost=Costly())
    log.error("three")
    assert stream.getvalue() == "ERROR   three\n"


def test_json_fields_do_not_replace_standard_fields(stream: io.StringIO) -> None:
    configure(style="json", clock=lambda: NOON_MS, stream=stream)
    get_logger("logs").error("disk failed", path="/a", offset=5, error=OSError("EIO"), level="worse")
    assert json.loads(stream.getvalue()) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "error",
        "logger": "moldau.logs",
        "message": "disk failed",
        "path": "/a",
        "offset": 5,
        "error": "OSError: EIO",
        "level_": "worse",
    }


@pytest.mark.parametrize("style", ["text", "json"])
def test_exceptions_are_logged_with_traceback(stream: io.StringIO, style: str) -> None:
    configure(style=style, stream=stream)
    try:
        raise ValueError("broken")
    except ValueError:
        get_logger("requests").exception("bug", api="Fetch")
    assert "Traceback (most recent call last)" in stream.getvalue()
    assert "ValueError: broken" in stream.getvalue()


def test_only_terminals_get_colours(stream: io.StringIO) -> None:
    terminal = Terminal()
    configure(stream=terminal)
    get_logger("a").error("x", y=1)
    configure(stream=stream)
    get_logger("a").error("x", y=1)
    assert "\x1b[31m" in terminal.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_configure_replaces_the_stream(stream: io.StringIO) -> None:
    configure(stream=io.StringIO())
    configure(stream=stream)
    get_logger("a").info("once")
    assert stream.getvalue() == "INFO    once\n"
    assert len(logging.getLogger("moldau").handlers) == 1
