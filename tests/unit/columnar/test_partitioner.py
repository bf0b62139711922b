"""Partitions of a column of keys, compared with the client's partitioner."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.client.producer.partitioner import partition_of_key
from moldau.columnar.partitioner import key_partitions
from support.columnar import codec

both = pytest.mark.parametrize("is_native", [True, False], ids=["native", "plain"])


@both
@given(
    keys=st.lists(st.none() | st.binary(max_size=40)),
    count=st.integers(1, 2**31 - 1),
    no_key_partition=st.integers(-1, 100),
)
def test_keys_are_partitioned_as_by_the_client(
    is_native: bool, keys: list[bytes | None], count: int, no_key_partition: int
) -> None:
    with codec(is_native):
        found = key_partitions(pa.array(keys, pa.binary()), count, no_key_partition)
    assert found.dtype == "int32"
    assert found.tolist() == [no_key_partition if key is None else partition_of_key(key, count) for key in keys]


@both
def test_text_is_hashed_as_utf8_also_in_slices(is_native: bool) -> None:
    keys = ["a", "né", None, "key-4"]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        with codec(is_native):
            found = key_partitions(pa.array(keys, kind).slice(1), 12, -1)
        assert found.tolist() == [partition_of_key("né".encode(), 12), -1, partition_of_key(b"key-4", 12)]


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="0 partitions"):
        key_partitions(pa.array([b"k"]), 0, 0)
