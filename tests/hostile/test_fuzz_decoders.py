"""Decoders of all APIs and versions get random bytes, truncated requests and requests with changed bytes, and return a
message or raise DecodeError in bounded memory and time. MOLDAU_FUZZ sets the number of inputs per decoder (40)."""

import os
import random
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path
from types import FrameType

INPUTS = int(os.environ.get("MOLDAU_FUZZ", "40"))
SEED = int(os.environ.get("MOLDAU_SEED", "1"))
MEMORY_BYTES_MAX = 1 << 30
INPUT_SECONDS_MAX = 5
LARGE = [
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\x00\x0f\x42\x40",
    b"\x80" * 10,
    b"\xff\xff",
]


def test_decoders_return_a_message_or_raise_decode_error() -> None:
    command = [sys.executable, __file__, str(SEED), str(INPUTS)]
    path = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    decoders, accepted, refused = (int(number) for number in done.stdout.split())
    assert decoders > 300
    assert accepted > 0
    assert refused > accepted


def changed(data: bytes, chance: random.Random) -> bytes:
    """Returns a request with one random mutation."""
    kind = chance.randrange(6)
    where = chance.randrange(len(data) + 1)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        return data[:where]
    if kind == 2:
        return data[:where] + chance.choice(LARGE) + data[where:]
    if kind == 3:
        large = chance.choice(LARGE)
        return data[:where] + large + data[where + len(large) :]
    out = bytearray(data)
    for _ in range(chance.randrange(1, 8)):
        if out:
            out[chance.randrange(len(out))] = chance.choice([0, 0x7F, 0x80, 0xFF, chance.randrange(256)])
    return bytes(out) if kind == 4 else bytes(out) + chance.randbytes(chance.randrange(50))


def too_slow(_: int, __: FrameType | None) -> None:
    raise TimeoutError(f"one decode took more than {INPUT_SECONDS_MAX} s")


def fuzz(seed: int, inputs: int) -> None:
    from moldau.wire.codec import DecodeError, decoder
    from moldau.wire.frames import read_request_header, skip_tagged_fields
    from support.random_messages import all_versions, random_tree, schema
    from support.wire import entity, write

    chance = random.Random(seed)
    versions = list(all_versions())
    valid = {
        each: write(entity(schema(*each, "request"), random_tree(schema(*each, "request"), chance)))
        for each in versions
    }
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    signal.signal(signal.SIGALRM, too_slow)
    accepted = refused = 0
    for (api_key, version), request in valid.items():
        decode = decoder(api_key, version, "request")
        for number in range(inputs):
            data = changed(request, chance)
            signal.alarm(INPUT_SECONDS_MAX)
            try:
                decode(memoryview(data))
                accepted += 1
            except DecodeError:
                refused += 1
            except BaseException:
                print(f"API {api_key} version {version}, input {number} of seed {seed}: {data.hex()}")
                raise
            finally:
                signal.alarm(0)
            header = struct.pack(">hhih", api_key, version, 1, 4) + data[:30]
            try:
                skip_tagged_fields(memoryview(header), read_request_header(memoryview(header)).body_start)
                read_request_header(memoryview(data))
            except DecodeError:
                pass
    print(len(versions), accepted, refused)


if __name__ == "__main__":
    fuzz(int(sys.argv[1]), int(sys.argv[2]))
