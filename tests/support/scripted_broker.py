"""A scripted broker: real TCP in the test's loop, with responses from the test's functions."""

import asyncio
import ssl
import struct
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self
from uuid import UUID

from moldau.client.net.api_versions import SUPPORTED_VERSIONS, VersionRange
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message, decoder, encoder, has_flexible_header
from moldau.wire.frames import read_request_header, skip_tagged_fields

Tree = dict[str, Any]
NODE = 7


class ReceivedRequest(NamedTuple):
    api: ApiKey
    version: int
    request: Message
    connection: int
    """Counts up from 0."""


class Hang:
    """Sends no response."""


class Disconnect:
    """Closes the connection instead of responding."""


ScriptedResponse = Tree | bytes | type[Hang] | type[Disconnect]
"""A response message, or a whole frame without its size."""
Script = Callable[[ReceivedRequest], ScriptedResponse | Awaitable[ScriptedResponse]]


class ScriptedBroker:
    """Handles ApiVersions, Metadata and InitProducerId by default; `scripts` handle the rest or override these."""

    def __init__(
        self,
        scripts: Mapping[ApiKey, Script] | None = None,
        *,
        topics: Mapping[str, int] | None = None,
        versions: Mapping[int, VersionRange] | None = None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        features: Mapping[str, int] | None = None,
    ) -> None:
        self.scripts: dict[ApiKey, Script] = {
            ApiKey.API_VERSIONS: self._api_versions,
            ApiKey.METADATA: self._metadata,
            ApiKey.INIT_PRODUCER_ID: lambda _: {
                "throttle_time": 0,
                "error_code": 0,
                "producer_id": 1000,
                "producer_epoch": 0,
            },
            **(scripts or {}),
        }
        self.topics = dict(topics or {})
        self.versions = dict(versions or SUPPORTED_VERSIONS)
        self.features = dict(features or {})
        self.features_epoch = 1
        self.leader_epoch = 0
        self.received_requests: list[ReceivedRequest] = []
        self.connections = 0
        self.port = port
        self.tls = tls
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def count(self, api: ApiKey) -> int:
        return sum(1 for each in self.received_requests if each.api is api)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port, ssl=self.tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.disconnect_all()
        await asyncio.sleep(0)

    def disconnect_all(self) -> None:
        """Closes every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = self.connections
        self.connections += 1
        self._writers.append(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                frame = memoryview(await reader.readexactly(size))
                await self._respond(frame, number, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def _respond(self, frame: memoryview, number: int, writer: asyncio.StreamWriter) -> None:
        header = read_request_header(frame)
        api, version = ApiKey(header.api_key), header.version
        flexible = has_flexible_header(api, version)
        body = skip_tagged_fields(frame, header.body_start) if flexible else header.body_start
        received = ReceivedRequest(api, version, decoder(api, version, "request")(frame[body:]), number)
        self.received_requests.append(received)
        answer = self.scripts[api](received)
        if not isinstance(answer, dict | bytes | type):
            answer = await answer
        if answer is Disconnect:
            writer.transport.abort()
        elif isinstance(answer, bytes):
            writer.write(struct.pack(">i", len(answer)) + answer)
        elif isinstance(answer, dict):
            out = bytearray(struct.pack(">i", header.correlation_id))
            if flexible and api is not ApiKey.API_VERSIONS:
                out.append(0)
            encoder(api, answer.get("version", version), "response")(out, answer)
            writer.write(struct.pack(">i", len(out)) + out)

    def _api_versions(self, received: ReceivedRequest) -> Tree:
        return {
            "error_code": 0,
            "throttle_time": 0,
            "api_keys": api_keys(self.versions),
            "finalized_features_epoch": self.features_epoch,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in self.features.items()
            ],
        }

    def _metadata(self, received: ReceivedRequest) -> Tree:
        named = received.request.topics
        names = list(self.topics) if named is None else [each.name for each in named]
        return {
            "throttle_time": 0,
            "error_code": 0,
            "brokers": [{"node_id": NODE, "host": "127.0.0.1", "port": self.port}],
            "cluster_id": "scripted",
            "controller_id": NODE,
            "topics": [self._topic(name) for name in names],
        }

    def _topic(self, name: str) -> Tree:
        count = self.topics.get(name, 0)
        return {
            "error_code": 0 if name in self.topics else 3,
            "name": name,
            "topic_id": UUID(int=1 + list(self.topics).index(name)) if name in self.topics else None,
            "partitions": [
                {
                    "error_code": 0,
                    "partition_index": index,
                    "leader_id": NODE,
                    "leader_epoch": self.leader_epoch,
                    "replica_nodes": [NODE],
                    "isr_nodes": [NODE],
                }
                for index in range(count)
            ],
        }


def api_keys(versions: Mapping[int, VersionRange]) -> list[Tree]:
    return [
        {"api_key": int(api), "min_version": each.minimum, "max_version": each.maximum}
        for api, each in versions.items()
    ]
