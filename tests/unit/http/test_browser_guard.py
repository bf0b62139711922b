"""Requests of web pages of other sites."""

import pytest

from moldau.http.browser_guard import find_refusal

LOCAL, ALL = "127.0.0.1", "0.0.0.0"


@pytest.mark.parametrize(
    ("method", "http_host", "headers", "is_accepted"),
    [
        ("POST", LOCAL, {}, True),
        ("POST", LOCAL, {"host": "localhost:8001"}, True),
        ("POST", LOCAL, {"host": "127.0.0.1:8001"}, True),
        ("POST", LOCAL, {"host": "[::1]:8001"}, True),
        ("POST", LOCAL, {"host": "example.com:8001"}, False),
        ("GET", LOCAL, {"host": "example.com."}, False),
        ("GET", LOCAL, {"host": "localhost.example.com"}, False),
        ("GET", "::1", {"host": "example.com"}, False),
        ("GET", "localhost", {"host": "example.com"}, False),
        ("GET", ALL, {"host": "example.com"}, True),
        ("GET", "kafka.example.com", {"host": "kafka.example.com"}, True),
        ("POST", LOCAL, {"host": "localhost:1", "sec-fetch-site": "cross-site"}, False),
        ("POST", ALL, {"host": "example.com", "sec-fetch-site": "cross-site"}, False),
        ("POST", LOCAL, {"host": "localhost:1", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ("GET", LOCAL, {"host": "localhost:1", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, True),
        ("GET", LOCAL, {"host": "localhost:1", "sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
        ("GET", LOCAL, {"host": "example.com", "sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, False),
        ("POST", LOCAL, {"host": "localhost:1", "sec-fetch-site": "same-origin", "origin": "http://x.com"}, True),
        ("POST", LOCAL, {"host": "localhost:1", "origin": "http://localhost:3000"}, True),
        ("POST", LOCAL, {"host": "localhost:1", "origin": "http://example.com"}, False),
        ("POST", LOCAL, {"host": "localhost:1", "origin": "null"}, False),
        ("POST", ALL, {"host": "node:1", "origin": "http://example.com"}, True),
    ],
)
def test_find_refusal(method: str, http_host: str, headers: dict[str, str], is_accepted: bool) -> None:
    assert (find_refusal(method, headers, http_host) is None) == is_accepted
