"""The codecs: round trips, other framings, garbage, and decompression bombs."""

import gzip
import json
import random
import subprocess
import sys
import zlib

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.errors import CorruptRecordError, MoldauError, RecordTooLargeError, UnsupportedCompressionError
from moldau.records.compression import CODECS_BY_NAME, GZIP, LZ4, NAMES, NONE, SNAPPY, ZSTD, compress, decompress

CODECS = range(5)
REAL_CODECS = (GZIP, SNAPPY, LZ4, ZSTD)
LIMIT = 1_000_000


@given(data=st.binary(max_size=2000), times=st.integers(1, 100), codec=st.sampled_from(CODECS))
def test_compression_round_trips(data: bytes, times: int, codec: int) -> None:
    whole = data * times
    assert decompress(codec, compress(codec, whole), LIMIT) == whole
    assert decompress(codec, memoryview(compress(codec, memoryview(whole))), LIMIT) == whole


@pytest.mark.parametrize("codec", CODECS)
def test_the_decompression_limit_is_exact(codec: int) -> None:
    data = b"0123456789" * 20_000
    compressed = compress(codec, data)
    assert decompress(codec, compressed, len(data)) == data
    with pytest.raises(RecordTooLargeError, match=str(len(data) - 1)):
        decompress(codec, compressed, len(data) - 1)


@pytest.mark.parametrize("codec", REAL_CODECS)
@given(data=st.binary(max_size=300))
def test_garbage_is_corrupt(codec: int, data: bytes) -> None:
    try:
        decompress(codec, data, LIMIT)
    except (CorruptRecordError, RecordTooLargeError):
        pass


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_plain_text_is_not_a_compressed_stream(codec: int) -> None:
    with pytest.raises(MoldauError):
        decompress(codec, b"\xff" + b"just some text, not compressed at all" * 5, LIMIT)


@pytest.mark.parametrize("codec", REAL_CODECS)
def test_a_truncated_stream_is_corrupt(codec: int) -> None:
    compressed = compress(codec, bytes(range(256)) * 8)
    whole_headers = {len(compressed), 16} if codec == SNAPPY else {len(compressed)}
    for size in range(1, len(compressed)):
        if size not in whole_headers:
            with pytest.raises(CorruptRecordError):
                decompress(codec, compressed[:size], LIMIT)


@pytest.mark.parametrize("codec", [-1, 5, 6, 7])
def test_unknown_codecs_are_rejected(codec: int) -> None:
    with pytest.raises(UnsupportedCompressionError):
        compress(codec, b"x")
    with pytest.raises(UnsupportedCompressionError):
        decompress(codec, b"x", LIMIT)


def test_names_and_numbers_agree() -> None:
    assert [CODECS_BY_NAME[name] for name in NAMES] == [NONE, GZIP, SNAPPY, LZ4, ZSTD]
    assert CODECS_BY_NAME["uncompressed"] == NONE


def test_bare_snappy_is_read() -> None:
    data = b"bare " * 1000
    assert decompress(SNAPPY, bytes(cramjam.snappy.compress_raw(data)), LIMIT) == data


def test_consecutive_snappy_streams_are_read() -> None:
    assert decompress(SNAPPY, compress(SNAPPY, b"one ") + compress(SNAPPY, b"two"), LIMIT) == b"one two"


def test_consecutive_gzip_members_are_read() -> None:
    assert decompress(GZIP, gzip.compress(b"one ") + gzip.compress(b"two"), LIMIT) == b"one two"


def test_a_long_gzip_stream_is_read_across_chunks() -> None:
    one, two = random.Random(1).randbytes(50_000), random.Random(2).randbytes(70_001)
    assert decompress(GZIP, gzip.compress(one) + gzip.compress(b"") + gzip.compress(two), LIMIT) == one + two


def test_an_empty_chunk_of_snappy_is_corrupt() -> None:
    with pytest.raises(CorruptRecordError):
        decompress(SNAPPY, compress(SNAPPY, b"x") + bytes(4), LIMIT)


def test_bytes_after_a_gzip_stream_are_corrupt() -> None:
    with pytest.raises(CorruptRecordError):
        decompress(GZIP, gzip.compress(b"one") + b"rest", LIMIT)


def test_lz4_blocks_are_independent() -> None:
    frame = compress(LZ4, b"block " * 100_000)
    assert frame[:4] == b"\x04\x22\x4d\x18"
    assert frame[4] & 0x20, "Java consumers reject frames of linked blocks"


def test_levels_change_the_result() -> None:
    data = b"".join(b"%d," % (number * number) for number in range(20_000))
    assert len(compress(GZIP, data, 9)) < len(compress(GZIP, data, 1))
    assert len(compress(LZ4, data, 12)) < len(compress(LZ4, data))
    assert len(compress(ZSTD, data, 19)) < len(compress(ZSTD, data, 1))


# In a separate process, so that the peak is that of this bomb. VmHWM, because ru_maxrss survives exec and
# would show the peak of the parent process.
BOMB_RUN = """
import json, sys
from moldau.errors import RecordTooLargeError
from moldau.records.compression import decompress

def peak_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))

codec, limit = int(sys.argv[1]), int(sys.argv[2])
bomb = sys.stdin.buffer.read()
before = peak_kb()
try:
    decompress(codec, bomb, limit)
    outcome = "decompressed"
except RecordTooLargeError:
    outcome = "refused"
print(json.dumps({"outcome": outcome, "grown_kb": peak_kb() - before}))
"""


def gzip_bomb(size: int) -> bytes:
    writer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(writer.compress(bytes(1 << 20)) for _ in range(size >> 20)) + writer.flush()


def bomb_of(codec: int, size: int) -> bytes:
    if codec == GZIP:
        return gzip_bomb(size)
    if codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(bytes(size)))
    return compress(codec, bytes(size))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("codec", REAL_CODECS, ids=[NAMES[codec] for codec in REAL_CODECS])
def test_a_decompression_bomb_respects_the_memory_limit(codec: int) -> None:
    bomb = bomb_of(codec, 128 << 20)
    limit = 8 << 20
    run = subprocess.run(
        [sys.executable, "-c", BOMB_RUN, str(codec), str(limit)], input=bomb, capture_output=True, check=True
    )
    result = json.loads(run.stdout)
    assert result["outcome"] == "refused"
    assert result["grown_kb"] < 3 * limit / 1024, result


def test_a_wrong_snappy_length_is_rejected_before_allocation() -> None:
    claims_4_gb = b"\xff\xff\xff\xff\x0f" + b"\x00" * 20
    with pytest.raises(RecordTooLargeError):
        decompress(SNAPPY, claims_4_gb, LIMIT)
