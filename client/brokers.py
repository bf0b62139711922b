"""Requests to the leader of a list of brokers, and the options and output that the scripts share."""

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import httpx

DEFAULT_BROKERS = ",".join(f"{number}@localhost:{8000 + number}" for number in range(1, 6))
CONNECT_TIMEOUT_S = 2.0
REQUEST_TIMEOUT_S = 15.0
"""How long a request is repeated, for example while the brokers elect a leader."""
RETRY_INTERVAL_S = 0.2
MISDIRECTED, UNAVAILABLE = 421, 503

_BROKER = re.compile(r"(?P<id>[^@,\s]+)@(?P<host>\[[0-9A-Fa-f:.%]+\]|[^@:,\s]+):(?P<port>[0-9]{1,5})")
_LEADER = re.compile(r"leader is (\S+?),")
_INDENT = "    "


class Broker(NamedTuple):
    id: str
    host: str
    port: int

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"broker {self.id} ({self.host}:{self.port})"


class RequestFailedError(Exception):
    """No broker could process the request. The message says why."""


class Brokers:
    """The brokers of a cluster. Requests go to the leader, which is found through the others."""

    def __init__(self, brokers: Sequence[Broker], timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._brokers = {broker.id: broker for broker in brokers}
        self._timeout_s = timeout_s
        self._last_leader: Broker | None = None
        # A proxy of the environment is not used: it may not reach the brokers.
        self._http = httpx.Client(trust_env=False)

    def request(self, method: str, path: str, body: Any = None, *, is_repeatable: bool = True) -> httpx.Response:
        """Returns the response of the leader, or the last refusal if there is no leader in time.

        A request that is not repeatable fails if the connection is lost after the request was sent, because the broker
        may have processed the request. Raises RequestFailedError.
        """
        deadline = time.monotonic() + self._timeout_s
        while True:
            response = self._request_once(method, path, body, deadline, is_repeatable)
            if not _can_be_retried(response) or time.monotonic() > deadline:
                return response
            time.sleep(RETRY_INTERVAL_S)

    def _request_once(self, method: str, path: str, body: Any, deadline: float, is_repeatable: bool) -> httpx.Response:
        """Sends the request to each broker at most once, until the leader responds."""
        waiting = list(self._brokers.values())
        if self._last_leader is not None:
            waiting.insert(0, self._last_leader)
        failures: dict[Broker, str] = {}
        refusal: httpx.Response | None = None
        tried: set[Broker] = set()
        while waiting:
            broker = waiting.pop(0)
            if broker in tried:
                continue
            tried.add(broker)
            timeout = httpx.Timeout(max(1.0, deadline - time.monotonic()), connect=CONNECT_TIMEOUT_S)
            try:
                response = self._http.request(method, broker.url + path, json=body, timeout=timeout)
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                failures[broker] = _describe(error)
                continue
            except httpx.TransportError as error:
                failures[broker] = _describe(error)
                if not is_repeatable:
                    raise RequestFailedError(
                        f"{broker} did not respond ({_describe(error)}); it may have processed the request"
                    ) from None
                continue
            if not _can_be_retried(response):
                self._last_leader = broker
                return response
            refusal = response
            if (leader := self._leader_named_by(response)) is not None:
                waiting.insert(0, leader)
        if refusal is None:
            reasons = "; ".join(f"{broker}: {reason}" for broker, reason in failures.items())
            raise RequestFailedError(f"no broker responded: {reasons}")
        return refusal

    def _leader_named_by(self, response: httpx.Response) -> Broker | None:
        """Returns the leader in a refusal, or None if the broker knows no leader.

        Raises RequestFailedError if the leader is not in the list of brokers.
        """
        named = _LEADER.search(response.text) if response.status_code == MISDIRECTED else None
        if named is None or named[1] in ("-1", "None", "unknown"):
            return None
        leader = self._brokers.get(named[1])
        if leader is None:
            raise RequestFailedError(f"the leader is broker {named[1]}, which is not in the list of brokers (-b)")
        return leader


class ArgumentParser(argparse.ArgumentParser):
    """A parser with the option -b. Wrong arguments end the script with exit code 1, like every other failure."""

    def __init__(self, description: str) -> None:
        super().__init__(description=description)
        self.add_argument(
            "-b",
            dest="brokers",
            type=parse_brokers,
            default=DEFAULT_BROKERS,
            metavar="BROKERS",
            help=f"comma-separated brokers as id@host:port ({DEFAULT_BROKERS} by default)",
        )

    def error(self, message: str) -> NoReturn:
        self.print_usage()
        self.exit(1, f"{self.prog}: error: {message}\n")


def parse_brokers(text: str) -> list[Broker]:
    """Parses `1@localhost:8001,2@localhost:8002`. Raises argparse.ArgumentTypeError."""
    brokers: dict[str, Broker] = {}
    for part in text.split(","):
        match = _BROKER.fullmatch(part.strip())
        if match is None or not 0 < int(match["port"]) < 65_536:
            raise argparse.ArgumentTypeError(f"{part!r} is not a broker; use id@host:port, such as 1@localhost:8001")
        if match["id"] in brokers:
            raise argparse.ArgumentTypeError(f"broker {match['id']} is listed twice")
        brokers[match["id"]] = Broker(match["id"], match["host"], int(match["port"]))
    return list(brokers.values())


def positive_integer(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)


def format_json(value: Any, indent: str = "") -> str:
    """Returns indented JSON. A list of plain values is one line."""
    if isinstance(value, dict) and value:
        items = [
            f"{json.dumps(name, ensure_ascii=False)}: {format_json(each, indent + _INDENT)}"
            for name, each in value.items()
        ]
        start, end = "{}"
    elif isinstance(value, list) and any(isinstance(each, dict | list) for each in value):
        items = [format_json(each, indent + _INDENT) for each in value]
        start, end = "[]"
    else:
        return json.dumps(value, ensure_ascii=False)
    separator = f",\n{indent}{_INDENT}"
    return f"{start}\n{indent}{_INDENT}{separator.join(items)}\n{indent}{end}"


def format_response(response: httpx.Response) -> str:
    """Returns the JSON of a response, indented. Any other text becomes JSON in the form of the API's errors."""
    try:
        return format_json(response.json())
    except ValueError:
        return format_error(f"HTTP status {response.status_code}: {response.text.strip()}")


def format_error(problem: object) -> str:
    """Returns a problem as JSON in the form of the API's errors."""
    return format_json({"detail": str(problem)})


def describe_refusal(response: httpx.Response) -> str:
    """Returns the error of a response as text."""
    try:
        detail = response.json()["detail"]
    except (ValueError, KeyError, TypeError):
        detail = response.text.strip()
    return detail if isinstance(detail, str) and detail else f"HTTP status {response.status_code}: {detail}"


def run(main: Callable[[], int]) -> NoReturn:
    """Runs a script and exits with its code."""
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output is gone. Python would print an error about the pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _can_be_retried(response: httpx.Response) -> bool:
    """Whether another broker, or this one later, can process the request."""
    is_unavailable = response.status_code == UNAVAILABLE and "Retry-After" in response.headers
    return response.status_code == MISDIRECTED or is_unavailable


def _describe(error: httpx.TransportError) -> str:
    return str(error) or type(error).__name__
