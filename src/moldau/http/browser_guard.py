"""Rejects requests that web pages of other sites make through a user's browser. Pure.

The API has no users and accepts bodies of any Content-Type. So a page of any site could produce records on a node that
listens on the user's machine. Browsers say where a request comes from; other clients do not send these headers.
"""

from collections.abc import Mapping
from functools import lru_cache
from ipaddress import ip_address

CROSS_SITE = "requests from web pages of other sites are not accepted"


def find_refusal(method: str, headers: Mapping[str, str], http_host: str) -> str | None:
    """Returns why a request is rejected; None if it is accepted.

    `headers` has lower-case names. `http_host` is the address that the server listens on.
    """
    # A link to a document of the API is harmless, unless its host name belongs to a site: see below.
    is_link = method in ("GET", "HEAD") and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site") == "cross-site" and not is_link:
        return CROSS_SITE
    if not _is_loopback(http_host):
        return None
    host = _host_name(headers.get("host", ""))
    if not (_is_local(host) or host == http_host.lower()):
        # A site can let its name point to this machine (DNS rebinding). Its pages are then no other site.
        return f"the host {host[:300]} is not accepted by a server that listens on {http_host}; use localhost"
    origin = headers.get("origin")
    if origin is not None and "sec-fetch-site" not in headers:
        origin_host = _host_name(origin.partition("://")[2])
        if origin_host != host and not _is_loopback(origin_host):
            return CROSS_SITE
    return None


@lru_cache
def _is_local(host: str) -> bool:
    """Whether a name cannot belong to a site: an IP address, or a name without a domain."""
    return _is_address(host) or "." not in host or host.endswith(".localhost")


@lru_cache
def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    return _is_address(host) and ip_address(host).is_loopback


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _host_name(authority: str) -> str:
    """Returns the host of `host:port` or `[address]:port`."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0].lower()
    return authority.partition(":")[0].lower().removesuffix(".")
