"""A Kafka client without Moldau's code: a plain socket, messages encoded with kio, and batches packed by hand."""

import dataclasses
import datetime
import io
import socket
import struct
import time
import types
import typing
from collections.abc import Callable
from typing import Any
from uuid import UUID

import crc32c
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
TIMEOUT_S = 20

PRODUCE, FETCH, LIST_OFFSETS, METADATA, API_VERSIONS = 0, 1, 2, 3, 18
CREATE_TOPICS, DELETE_TOPICS, DELETE_RECORDS, INIT_PRODUCER_ID = 19, 20, 21, 22
OFFSET_FOR_LEADER_EPOCH, DESCRIBE_CONFIGS, INCREMENTAL_ALTER_CONFIGS, DESCRIBE_LOG_DIRS = 23, 32, 44, 35
COORDINATOR_LOAD_IN_PROGRESS = 14


# Conversion between plain trees and kio's entities


def without_none(hint: Any) -> tuple[Any, bool]:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not types.NoneType]
        return options[0], len(options) < len(typing.get_args(hint))
    return hint, False


def _typed(hint: Any, kafka_type: str, value: Any) -> Any:
    hint, _ = without_none(hint)
    if value is None:
        return None
    if typing.get_origin(hint) is tuple:
        return tuple(_typed(typing.get_args(hint)[0], kafka_type, each) for each in value)
    if dataclasses.is_dataclass(hint):
        return entity(hint, value)  # type: ignore[arg-type]
    if kafka_type == "error_code":
        return ErrorCode(value)
    if kafka_type.startswith("timedelta"):
        return datetime.timedelta(milliseconds=value)
    if kafka_type.startswith("datetime"):
        return EPOCH + datetime.timedelta(milliseconds=value)
    if kafka_type == "uuid":
        return value
    return value


def _zero(hint: Any, kafka_type: str) -> Any:
    hint, nullable = without_none(hint)
    if nullable:
        return None
    if typing.get_origin(hint) is tuple:
        return ()
    if dataclasses.is_dataclass(hint):
        return entity(hint, {})  # type: ignore[arg-type]
    zeros = {"string": "", "bytes": b"", "records": b"", "bool": False, "uuid": None}
    return _typed(hint, kafka_type, zeros.get(kafka_type, 0))


def entity(kind: type, tree: dict[str, Any]) -> Any:
    """Builds a kio entity from plain values; missing fields have the schema's default or zero."""
    hints = typing.get_type_hints(kind)
    values = {}
    for field in dataclasses.fields(kind):
        kafka_type = field.metadata.get("kafka_type", "")
        if field.name in tree:
            values[field.name] = _typed(hints[field.name], kafka_type, tree[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = _zero(hints[field.name], kafka_type)
    return kind(**values)


def plain(value: Any) -> Any:
    """Converts kio's values to dicts, lists, ints (times in milliseconds) and UUIDs."""
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(milliseconds=1)
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(milliseconds=1)
    if isinstance(value, ErrorCode):
        return int(value.value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def write(message: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(message))(out, message)
    return out.getvalue()


def encode(
    api_key: int, version: int, tree: dict[str, Any], correlation_id: int, client_id: str | None = "raw"
) -> bytes:
    """Encodes a request without its frame size."""
    schema = load_request_schema(api_key, version)
    header = {
        "request_api_key": api_key,
        "request_api_version": version,
        "correlation_id": correlation_id,
        "client_id": client_id,
    }
    return write(entity(schema.__header_schema__, header)) + write(entity(schema, tree))  # type: ignore[arg-type]


def decode(api_key: int, version: int, frame: bytes) -> tuple[int, dict[str, Any]]:
    """Returns the correlation id and the response, which must fill the frame."""
    schema = load_response_schema(api_key, version)
    header, size = entity_reader(schema.__header_schema__)(frame, 0)  # type: ignore[arg-type]
    body, body_size = entity_reader(schema)(frame, size)  # type: ignore[type-var]
    assert size + body_size == len(frame), f"{len(frame) - size - body_size} unexpected bytes after the response"
    return int(header.correlation_id), plain(body)


class ConnectionClosedError(Exception):
    """The broker closed the connection."""


class WireClient:
    """One connection to a broker."""

    def __init__(self, bootstrap: str, timeout_s: float = TIMEOUT_S, *, client_id: str = "raw") -> None:
        host, port = bootstrap.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=timeout_s)
        self.client_id = client_id
        self.correlation_id = 100

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def send_frame(self, frame: bytes) -> None:
        self.send_raw(struct.pack(">i", len(frame)) + frame)

    def send(self, api_key: int, version: int, tree: dict[str, Any]) -> int:
        self.correlation_id += 1
        self.send_frame(encode(api_key, version, tree, self.correlation_id, self.client_id))
        return self.correlation_id

    def receive_frame(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def receive(self, api_key: int, version: int) -> tuple[int, dict[str, Any]]:
        return decode(api_key, version, self.receive_frame())

    def request(self, api_key: int, version: int, tree: dict[str, Any]) -> dict[str, Any]:
        sent = self.send(api_key, version, tree)
        correlation_id, response = self.receive(api_key, version)
        assert correlation_id == sent
        return response

    def is_closed(self) -> bool:
        """Waits for the broker to close the connection; returns False if it responds instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                chunk = self.socket.recv(min(size - len(data), 1 << 20))
            except ConnectionError as error:
                raise ConnectionClosedError(str(error)) from None
            if not chunk:
                raise ConnectionClosedError(f"closed after {len(data)} of {size} bytes")
            data += chunk
        return bytes(data)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "WireClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# Batches by hand


def varint(value: int) -> bytes:
    zigzag = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def record(offset_delta: int, value: bytes | None, key: bytes | None = None, timestamp_delta: int = 0) -> bytes:
    def sized(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + sized(key) + sized(value) + varint(0)
    return varint(len(body)) + body


def batch(
    values: typing.Sequence[bytes | None] = (b"value",),
    *,
    key: bytes | None = None,
    base_offset: int = 0,
    magic: int = 2,
    attributes: int = 0,
    last_offset_delta: int | None = None,
    base_timestamp: int = 1_700_000_000_000,
    max_timestamp: int | None = None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    count: int | None = None,
    crc: int | None = None,
    records: bytes | None = None,
    length: int | None = None,
) -> bytes:
    """Builds a v2 batch; every header field can be set to an invalid value."""
    if records is None:
        records = b"".join(record(delta, value, key) for delta, value in enumerate(values))
    checked = struct.pack(
        ">hiqqqhii",
        attributes,
        len(values) - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        base_timestamp if max_timestamp is None else max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(values) if count is None else count,
    )
    checked += records
    if crc is None:
        crc = crc32c.crc32c(checked)
    rest = struct.pack(">ibI", -1, magic, crc) + checked
    return struct.pack(">qi", base_offset, len(rest) if length is None else length) + rest


def produce_tree(topic: str, *batches: bytes, partition: int = 0, acks: int = -1, **more: Any) -> dict[str, Any]:
    data = {"index": partition, "records": b"".join(batches)}
    return {"acks": acks, "timeout": 10_000, "topic_data": [{"name": topic, "partition_data": [data]}], **more}


def produce(wire: WireClient, topic: str, *batches: bytes, version: int = 9, **more: Any) -> tuple[int, int]:
    """Produces to one partition and returns the error code and the base offset."""
    response = wire.request(PRODUCE, version, produce_tree(topic, *batches, **more))
    (topic_answer,) = response["responses"]
    (partition_answer,) = topic_answer["partition_responses"]
    return partition_answer["error_code"], partition_answer["base_offset"]


def fetch_tree(topic: str, offset: int, partition: int = 0, **more: Any) -> dict[str, Any]:
    wanted = {
        "partition": partition,
        "current_leader_epoch": more.pop("current_leader_epoch", -1),
        "fetch_offset": offset,
        "log_start_offset": -1,
        "partition_max_bytes": more.pop("partition_max_bytes", 1 << 20),
    }
    tree = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 25,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [wanted]}],
    }
    return {**tree, **more}


def fetch(wire: WireClient, topic: str, offset: int, version: int = 12, **more: Any) -> dict[str, Any]:
    """Fetches one partition and returns its response."""
    response = wire.request(FETCH, version, fetch_tree(topic, offset, **more))
    (topic_answer,) = response["responses"]
    (partition_answer,) = topic_answer["partitions"]
    found: dict[str, Any] = partition_answer
    return found


def latest(wire: WireClient, topic: str, partition: int = 0) -> dict[str, Any]:
    """Returns the ListOffsets response for the latest offset of a partition."""
    wanted = {"partition_index": partition, "timestamp": -1, "current_leader_epoch": -1}
    tree = {"replica_id": -1, "topics": [{"name": topic, "partitions": [wanted]}]}
    found: dict[str, Any] = wire.request(LIST_OFFSETS, 7, tree)["topics"][0]["partitions"][0]
    return found


def end_offset(wire: WireClient, topic: str, partition: int = 0) -> int:
    offset: int = latest(wire, topic, partition)["offset"]
    return offset


def init_producer_id(wire: WireClient, **more: Any) -> dict[str, Any]:
    """Returns the response to InitProducerId, by default for an idempotent producer. Repeats the request while a node
    that has just started has no producer ids."""
    tree = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        response = wire.request(INIT_PRODUCER_ID, 4, {**tree, **more})
        if response["error_code"] != COORDINATOR_LOAD_IN_PROGRESS:
            return response
        assert time.monotonic() < deadline, "the node has no producer ids"


def new_producer_id(wire: WireClient) -> int:
    response = init_producer_id(wire)
    assert response["error_code"] == 0
    assigned: int = response["producer_id"]
    return assigned


def topic_id(wire: WireClient, topic: str) -> UUID:
    response = wire.request(METADATA, 12, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
    found: UUID = response["topics"][0]["topic_id"]
    return found


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Waits for an effect that Kafka applies a little later than its response. Moldau applies it at once."""
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def stored_codec(bootstrap: str, topic: str) -> str:
    """Returns the codec of the first stored batch of a topic."""
    with WireClient(bootstrap) as wire:
        data: bytes = fetch(wire, topic, 0)["records"]
    return ("none", "gzip", "snappy", "lz4", "zstd")[data[22] & 7]
