"""Messages of every API and version round-trip, and invalid bytes are rejected."""

import traceback
import uuid
from typing import Any
from uuid import UUID

import pytest

from moldau.handlers import REGISTRY
from moldau.wire import schema
from moldau.wire.codec import COPIED_BYTES_MAX, DecodeError, Message, decoder, encoder, generated_source
from moldau.wire.decoder_runtime import ELEMENTS_MAX, STRING_BYTES_MAX, TAGS_MAX
from moldau.wire.encoder_compiler import write_unsigned_varint
from moldau.wire.frames import ResponseFrame, read_request_header, skip_tagged_fields
from moldau.wire.schema import FIRST_TAG, MessageKind, message_type, schema_fields

EVERY_MESSAGE = [
    (int(key), version, kind)
    for key, served in sorted(REGISTRY.items())
    for version in range(served.min_version, served.max_version + 1)
    for kind in ("request", "response")
]

SAMPLES: dict[str, Any] = {
    "bool": True,
    "string": "übung",
    "bytes": b"\x00\x01",
    "records": b"batch",
    "uuid": uuid.UUID(int=7),
    "float64": 0.5,
}


def sample(entity: type) -> dict[str, Any]:
    """A tree with a distinct value in every field."""
    tree = {}
    for number, field in enumerate(schema_fields(entity), start=1):
        value = sample(field.entity) if field.entity else SAMPLES.get(field.kafka_type, number)
        tree[field.name] = [value, value] if field.is_array else value
    return tree


def plain(value: Any) -> Any:
    if isinstance(value, Message):
        return {name: plain(each) for name, each in vars(value).items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return bytes(value) if isinstance(value, memoryview) else value


@pytest.mark.parametrize(("key", "version", "kind"), EVERY_MESSAGE)
def test_every_field_of_every_version_round_trips(key: int, version: int, kind: MessageKind) -> None:
    tree = sample(message_type(key, version, kind))
    out = bytearray()
    encoder(key, version, kind)(out, tree)
    assert plain(decoder(key, version, kind)(memoryview(out))) == tree


@pytest.mark.parametrize(("key", "version", "kind"), EVERY_MESSAGE)
def test_a_truncated_message_is_rejected(key: int, version: int, kind: MessageKind) -> None:
    out = bytearray()
    encoder(key, version, kind)(out, sample(message_type(key, version, kind)))
    decode = decoder(key, version, kind)
    for length in range(len(out)):
        with pytest.raises(DecodeError):
            decode(memoryview(out)[:length])


def test_record_data_is_not_copied() -> None:
    out = bytearray()
    partition = {"index": 0, "records": b"x" * 1000}
    encoder(0, 9, "request")(
        out, {"acks": 1, "timeout": 1, "topic_data": [{"name": "t", "partition_data": [partition]}]}
    )
    request = decoder(0, 9, "request")(memoryview(out))
    records = request.topic_data[0].partition_data[0].records
    out[out.index(b"xxx")] = ord("y")
    assert bytes(records[:2]) == b"yx"


def test_an_announced_count_is_checked_against_the_bytes_left() -> None:
    huge = bytearray()
    write_unsigned_varint(huge, 2**32 - 1)
    with pytest.raises(DecodeError, match="elements announced"):
        decoder(3, 12, "request")(memoryview(huge))
    with pytest.raises(DecodeError, match="elements announced"):
        decoder(3, 8, "request")(memoryview((2**31 - 1).to_bytes(4, "big")))


def test_a_message_has_no_more_elements_than_the_limit() -> None:
    body = bytearray()
    write_unsigned_varint(body, ELEMENTS_MAX + 2)
    body += bytes(ELEMENTS_MAX * 20)
    with pytest.raises(DecodeError, match="more than"):
        decoder(3, 12, "request")(memoryview(body))


def test_a_response_may_have_as_many_elements_as_bytes() -> None:
    replicas = list(range(ELEMENTS_MAX + 1))
    partition = {"error_code": 0, "partition_index": 0, "leader_id": 0, "replica_nodes": replicas, "isr_nodes": []}
    topic = {"error_code": 0, "name": "orders", "is_internal": False, "partitions": [partition]}
    out = bytearray()
    encoder(3, 1, "response")(out, {"brokers": [], "controller_id": 0, "topics": [topic]})
    response = decoder(3, 1, "response")(memoryview(out))
    assert response.topics[0].partitions[0].replica_nodes == replicas


def test_tagged_fields_are_counted_and_unknown_ones_skipped() -> None:
    out = bytearray()
    encoder(18, 3, "request")(out, {"client_software_name": "a", "client_software_version": "1"})
    known = bytes(out[:-1])
    few = known + bytes([2, 100, 1, 0, 101, 0])
    assert decoder(18, 3, "request")(memoryview(few)).client_software_name == "a"
    many = bytearray(known)
    write_unsigned_varint(many, TAGS_MAX + 1)
    many += b"".join(bytes([tag, 0]) for tag in range(TAGS_MAX + 1))
    with pytest.raises(DecodeError, match="tagged"):
        decoder(18, 3, "request")(memoryview(many))


def test_null_in_a_field_that_is_not_nullable_is_rejected() -> None:
    with pytest.raises(DecodeError):
        decoder(19, 2, "request")(memoryview(b"\xff\xff\xff\xff"))


def test_invalid_utf8_is_decoded_as_an_unknown_name() -> None:
    request = decoder(18, 3, "request")(memoryview(b"\x02\xff\x02a\x00"))
    assert request.client_software_name == "\ufffd"


def test_invalid_utf8_that_would_be_too_long_to_encode_is_rejected() -> None:
    def software(name: bytes) -> memoryview:
        out = bytearray()
        write_unsigned_varint(out, len(name) + 1)
        return memoryview(out + name + b"\x02a\x00")

    decode = decoder(18, 3, "request")
    assert decode(software(b"\xff" * 10_922)).client_software_name == "\ufffd" * 10_922
    assert decode(software(b"a" * STRING_BYTES_MAX)).client_software_name == "a" * STRING_BYTES_MAX
    with pytest.raises(DecodeError, match="a string has"):
        decode(software(b"\xff" * 10_923))
    topics = b"\x00\x00\x00\x01\x7f\xff" + b"\xff" * STRING_BYTES_MAX + b"\x01\x00\x00"
    with pytest.raises(DecodeError, match="a string has"):
        decoder(3, 8, "request")(memoryview(topics))
    with pytest.raises(DecodeError, match="a string has"):
        read_request_header(memoryview(b"\x00\x0b\x00\x00\x00\x00\x00\x07\x2a\xab" + b"\xff" * 10_923))


def test_elements_in_tagged_fields_are_counted_like_all_others() -> None:
    topics = bytearray()
    write_unsigned_varint(topics, ELEMENTS_MAX + 2)
    topics += bytes(ELEMENTS_MAX * 30)
    body = bytearray()
    tree = {
        "broker_id": 1,
        "broker_epoch": 2,
        "current_metadata_offset": 3,
        "want_fence": False,
        "want_shut_down": False,
    }
    encoder(63, 1, "request")(body, tree)
    body[-1] = 1
    write_unsigned_varint(body, FIRST_TAG)
    write_unsigned_varint(body, len(topics))
    with pytest.raises(DecodeError, match="more than"):
        decoder(63, 1, "request")(memoryview(body + topics))


def test_a_tagged_field_with_a_wrong_length_is_rejected() -> None:
    epoch = b"\x00\x00\x00\x00\x00\x00\x00\x07"
    for size in (7, 9):
        body = b"\x00\x00\x01\x00\x00\x00\x00" + bytes([1, 1, size]) + epoch + b"\x00"
        with pytest.raises(DecodeError, match="another length than announced"):
            decoder(18, 3, "response")(memoryview(body))
    body = b"\x00\x00\x01\x00\x00\x00\x00" + bytes([1, 1, 8]) + epoch
    assert decoder(18, 3, "response")(memoryview(body)).finalized_features_epoch == 7


def test_endless_varints_and_oversized_strings_are_rejected() -> None:
    with pytest.raises(DecodeError, match="does not end"):
        decoder(18, 3, "request")(memoryview(b"\x80" * 20))
    text = bytearray()
    write_unsigned_varint(text, 40_000)
    with pytest.raises(DecodeError, match="a string has 39999 bytes"):
        decoder(18, 3, "request")(memoryview(text + bytes(40_000)))


def test_a_message_too_large_to_be_copied_is_decoded_in_place() -> None:
    tree = sample(message_type(11, 9, "request"))
    tree["protocols"][0]["metadata"] = bytes(COPIED_BYTES_MAX)
    out = bytearray()
    encoder(11, 9, "request")(out, tree)
    assert plain(decoder(11, 9, "request")(memoryview(out))) == tree


def test_messages_do_not_share_defaults_of_absent_tagged_fields() -> None:
    decode = decoder(18, 3, "response")
    body = memoryview(b"\x00\x00\x01\x00\x00\x00\x00\x00")
    decode(body).supported_features.append("mine")
    assert decode(body).supported_features == []


def test_get_reads_fields_that_a_version_may_lack() -> None:
    request = decoder(18, 3, "request")(memoryview(b"\x02a\x021\x00"))
    assert request.get("client_software_name") == "a"
    assert request.get("rack_id") is None
    assert request.get("rack_id", "r") == "r"
    assert not hasattr(request, "rack_id")


def test_messages_are_equal_by_fields_and_have_a_repr() -> None:
    body = memoryview(b"\x02a\x021\x00")
    request = decoder(18, 3, "request")(body)
    assert request == decoder(18, 3, "request")(body)
    assert request == Message(client_software_name="a", client_software_version="1")
    assert request != Message(client_software_name="b", client_software_version="1")
    assert repr(request) == "ApiVersionsRequest(client_software_name='a', client_software_version='1')"


def test_no_field_shadows_an_attribute_of_message() -> None:
    def names(entity: type) -> set[str]:
        fields = schema_fields(entity)
        return {field.name for field in fields}.union(*(names(each.entity) for each in fields if each.entity))

    taken = set(dir(Message))
    for key, version, kind in EVERY_MESSAGE:
        assert not names(message_type(key, version, kind)) & taken


def test_generated_code_reads_and_writes_adjacent_fields_in_one_call() -> None:
    source = generated_source(message_type(8, 9, "request"))
    compile(source, "<shown>", "exec")
    assert "item_2.partition_index, item_2.committed_offset, item_2.committed_leader_epoch, size = " in source
    assert 'out += pack_iqi(tree_2["partition_index"], tree_2["committed_offset"], ' in source


def test_a_traceback_of_generated_code_shows_its_line() -> None:
    try:
        encoder(3, 12, "response")(bytearray(), {"throttle_time": "soon", "brokers": [], "topics": []})
    except Exception:
        assert 'pack_i(tree.get("throttle_time", 0))' in traceback.format_exc()
    else:
        pytest.fail("a string was encoded as a number")


def test_a_missing_required_field_raises_key_error() -> None:
    with pytest.raises(KeyError, match="MetadataResponse needs a value for node_id"):
        encoder(3, 12, "response")(bytearray(), {"brokers": [{"host": "a", "port": 1}]})


def test_a_response_refers_to_stored_records() -> None:
    class StoredRecords:
        parts = (b"first", b"second")
        size = 11

    out = ResponseFrame(5, flexible=True)
    partition = {"partition_index": 0, "error_code": 0, "high_watermark": 1, "aborted_transactions": None}
    tree = {
        "throttle_time": 0,
        "error_code": 0,
        "session_id": 0,
        "responses": [{"topic": "t", "partitions": [{**partition, "records": StoredRecords()}]}],
    }
    encoder(1, 12, "response")(out, tree)
    parts = out.parts()
    assert parts[1:3] == [b"first", b"second"]
    frame = b"".join(bytes(part) for part in parts)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    response = decoder(1, 12, "response")(memoryview(frame)[9:])
    assert bytes(response.responses[0].partitions[0].records) == b"firstsecond"


def test_request_headers_are_decoded_up_to_the_body() -> None:
    frame = memoryview(b"\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x02me\x01\x05\x01\xffbody")
    header = read_request_header(frame)
    assert header[:4] == (3, 12, 7, "me")
    assert bytes(frame[skip_tagged_fields(frame, header.body_start) :]) == b"body"
    assert read_request_header(memoryview(b"\x00\x03\x00\x00\x00\x00\x00\x07\xff\xff")).client_id is None
    for wrong in (b"\x00\x03", b"\x00\x03\x00\x00\x00\x00\x00\x07\x00\x09me"):
        with pytest.raises(DecodeError):
            read_request_header(memoryview(wrong))


def test_an_unknown_api_has_no_schema() -> None:
    with pytest.raises(LookupError):
        schema.message_type(999, 0, "request")
    with pytest.raises(LookupError):
        schema.message_type(0, 99, "request")


def test_extension_fields_round_trip_and_kio_skips_them() -> None:
    not_ready = [{"topic_id": UUID(int=5), "partition_index": 3, "reason": "the disk is full"}]
    tree = {
        "broker_id": 1,
        "broker_epoch": 2,
        "current_metadata_offset": 3,
        "want_fence": False,
        "want_shut_down": True,
    }
    with_ours, without = bytearray(), bytearray()
    encoder(63, 1, "request")(with_ours, {**tree, "not_ready": not_ready})
    encoder(63, 1, "request")(without, tree)
    read = decoder(63, 1, "request")(memoryview(with_ours))
    assert [(each.topic_id, each.partition_index, each.reason) for each in read.not_ready] == [
        (UUID(int=5), 3, "the disk is full")
    ]
    assert decoder(63, 1, "request")(memoryview(without)).not_ready == []
    # Kafka's reader finds the same message with and without: what we add stands in the tags at its end.
    assert with_ours.startswith(without[:-1])
    assert without[-1] == 0
