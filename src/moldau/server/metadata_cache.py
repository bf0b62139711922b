"""Encoded responses to Metadata requests for many partitions.

Clients refresh their metadata together: after a failover, and when many of them start. Building and encoding the
response for 1,000 partitions takes milliseconds, in which the event loop does nothing else. So the encoded response is
kept until the metadata changes.
"""

from collections.abc import Hashable

from moldau.metadata.image import EMPTY_IMAGE, MetadataImage

CACHED_BYTES_MAX = 8 * 1024 * 1024


class MetadataResponseCache:
    """Responses for the latest image that was asked for, by everything else that they depend on."""

    def __init__(self, bytes_max: int = CACHED_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._image = EMPTY_IMAGE
        self._responses: dict[Hashable, bytes] = {}
        """In the order of their last use."""
        self._bytes = 0

    def get(self, image: MetadataImage, key: Hashable) -> bytes | None:
        if image is not self._image:
            return None
        body = self._responses.pop(key, None)
        if body is not None:
            self._responses[key] = body
        return body

    def put(self, image: MetadataImage, key: Hashable, body: bytes) -> None:
        """Keeps a response and drops the ones that were not used for longest, if they are too large together."""
        if image is not self._image:
            self._image = image
            self._responses.clear()
            self._bytes = 0
        self._bytes += len(body) - len(self._responses.pop(key, b""))
        self._responses[key] = body
        while self._bytes > self._bytes_max:
            self._bytes -= len(self._responses.pop(next(iter(self._responses))))
