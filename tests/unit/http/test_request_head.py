"""The parser of request heads."""

import pytest

from moldau.http.request_head import MalformedRequestError, check_start, parse_head


def test_a_head_has_method_path_and_headers() -> None:
    head = parse_head(b"GET /readyz?verbose=1 HTTP/1.1\r\nHost: a:1\r\nX-Two:  b \r\nEmpty:")
    assert (head.method, head.path, head.is_http_1_0) == ("GET", "/readyz", False)
    assert head.headers == {"host": "a:1", "x-two": "b", "empty": ""}


@pytest.mark.parametrize(
    ("headers", "has_body"),
    [
        (b"", False),
        (b"\r\ncontent-length: 0", False),
        (b"\r\ncontent-length: 1", True),
        (b"\r\nContent-Length: x", True),
        (b"\r\nTransfer-Encoding: chunked", True),
    ],
)
def test_a_body_is_announced_by_headers(headers: bytes, has_body: bool) -> None:
    assert parse_head(b"GET / HTTP/1.1" + headers).has_body is has_body


@pytest.mark.parametrize("data", [b"", b"GET", b"GET /", b"GET / HTTP/3", b"GET / a HTTP/1.1", b"GET  HTTP/1.1"])
def test_a_malformed_request_line_is_rejected(data: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        parse_head(data)


@pytest.mark.parametrize("header", [b"no colon", b": value", b" a: b", b"a : b", b"a: \x00"])
def test_a_malformed_header_is_rejected(header: bytes) -> None:
    with pytest.raises(MalformedRequestError):
        parse_head(b"GET / HTTP/1.1\r\n" + header)


def test_the_start_of_a_request_is_checked_before_the_rest_arrives() -> None:
    for data in (b"G", b"GET", b"GET /", b"OPTIONS * HTTP"):
        check_start(data)
    for data in (b"\x16\x03\x01", b"get /", b"G\xc3\x89T /", b"1", b" GET", b"A" * 16):
        with pytest.raises(MalformedRequestError):
            check_start(data)
