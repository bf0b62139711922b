"""Encoding and decoding of subscriptions and assignments, also of invalid bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.consumer_protocol_assignment.v3.data import ConsumerProtocolAssignment
from kio.schema.consumer_protocol_subscription.v3.data import ConsumerProtocolSubscription
from kio.serial import entity_reader

from moldau.wire.codec import DecodeError
from moldau.wire.consumer_protocol import (
    Assignment,
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8)
partitions = st.lists(st.tuples(names, st.integers(0, 2**31 - 1)), max_size=6, unique=True).map(
    lambda some: tuple(sorted(some))
)
user_data = st.none() | st.binary(max_size=8)
subscriptions = st.builds(
    Subscription,
    st.lists(names, max_size=4, unique=True).map(lambda some: tuple(sorted(some))),
    user_data,
    partitions,
    st.integers(-1, 2**31 - 1),
    st.none() | names,
)


@given(subscriptions)
def test_a_subscription_round_trips(subscription: Subscription) -> None:
    assert decode_subscription(encode_subscription(subscription)) == subscription


@given(partitions, user_data)
def test_an_assignment_round_trips(some: tuple[tuple[str, int], ...], data: bytes | None) -> None:
    assert decode_assignment(encode_assignment(Assignment(some, data))) == Assignment(some, data)


@pytest.mark.parametrize(
    ("version", "later_bytes", "kept"),
    [
        (0, 23, Subscription(("a", "b"), b"x")),
        (1, 10, Subscription(("a", "b"), b"x", (("a", 1),))),
        (2, 6, Subscription(("a", "b"), b"x", (("a", 1),), 7)),
        (3, 0, Subscription(("a", "b"), b"x", (("a", 1),), 7, "rack")),
    ],
)
def test_older_versions_omit_later_fields(version: int, later_bytes: int, kept: Subscription) -> None:
    full = encode_subscription(Subscription(("b", "a"), b"x", (("a", 1),), 7, "rack"))
    older = version.to_bytes(2, "big") + full[2 : len(full) - later_bytes]
    assert decode_subscription(older) == kept


def test_unknown_fields_of_a_newer_version_are_ignored() -> None:
    known = Subscription(("a",), None, (("a", 0),), 3, None)
    newer = b"\x00\x09" + encode_subscription(known)[2:] + b"what came later"
    assert decode_subscription(newer) == known


@given(subscriptions)
def test_kio_decodes_the_same_subscription(subscription: Subscription) -> None:
    data = encode_subscription(subscription)
    read = entity_reader(ConsumerProtocolSubscription)(memoryview(data), 2)[0]
    assert read.topics == subscription.topics
    assert read.user_data == subscription.user_data
    assert read.generation_id == subscription.generation_id
    assert read.rack_id == subscription.rack_id
    owned = [(each.topic, index) for each in read.owned_partitions for index in each.partitions]
    assert tuple(owned) == subscription.owned_partitions


def test_kio_decodes_the_same_assignment() -> None:
    data = encode_assignment(Assignment((("a", 0), ("a", 2), ("b", 1)), b"x"))
    read = entity_reader(ConsumerProtocolAssignment)(memoryview(data), 2)[0]
    assert [(each.topic, each.partitions) for each in read.assigned_partitions] == [("a", (0, 2)), ("b", (1,))]
    assert read.user_data == b"x"


def test_empty_bytes_are_an_empty_assignment() -> None:
    assert decode_assignment(b"") == Assignment(())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00",
        b"\xff\xff\x00\x00\x00\x00",
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\xff\xff\xff\xfe",
        b"\x00\x00\x00\x00\x00\x01\xff\xff\xff\xff\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\x7f\xff" + b"\xff" * 32_767 + b"\xff\xff\xff\xff",
    ],
    ids=[
        "nothing",
        "half a version",
        "negative version",
        "count beyond the end",
        "negative count",
        "null topic",
        "a name too long to be written again",
    ],
)
def test_an_invalid_subscription_is_rejected(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_subscription(data)


@given(subscriptions, st.data())
def test_a_truncated_subscription_is_rejected(subscription: Subscription, data: st.DataObject) -> None:
    whole = encode_subscription(subscription)
    cut = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(DecodeError):
        decode_subscription(whole[:cut])


@given(st.binary(max_size=64))
def test_random_bytes_are_decoded_or_raise_decode_error(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        try:
            decode(data)
        except DecodeError:
            pass
