"""The compiled codec reads no byte beyond its input: sections end where readable memory ends, so one byte more would
kill the process."""

import subprocess
import sys

FUZZING = """
import ctypes, mmap, random
from moldau.columnar import native
from moldau.columnar.columns import COLUMNS
from moldau.columnar.decode_native import decode
from moldau.errors import CorruptRecordError
from moldau.records.batch import HEADER_SIZE, Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record

assert native.is_native()
PAGE = mmap.PAGESIZE
memory = mmap.mmap(-1, 2 * PAGE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.mprotect(ctypes.c_void_p(address + PAGE), ctypes.c_size_t(PAGE), 0) == 0
readable = memoryview(memory)[:PAGE]

chance = random.Random(20240607)
HUGE = [b"\\xfe" + b"\\xff" * 8 + b"\\x01", b"\\xfe" * 9 + b"\\x7f", b"\\xff" * 9 + b"\\x01"]
columns = [name for name in COLUMNS if name not in ("topic", "partition")]
read = corrupt = 0
for _ in range(15_000):
    records = [
        Record(
            timestamp=chance.choice((0, 2**40)),
            key=chance.choice((None, b"", b"key" * chance.randrange(30))),
            value=chance.choice((None, b"", b"value" * chance.randrange(30))),
            headers=((("h" * chance.randrange(4), chance.choice((None, b"content"))),) * chance.randrange(3)),
        )
        for _ in range(chance.randrange(1, 5))
    ]
    batch = Batch(build_batch(records))
    section = bytearray(batch.section)
    for _ in range(chance.randrange(4)):
        section[chance.randrange(len(section))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    if chance.random() < 0.3 and len(section) > 30:
        start = chance.randrange(len(section) - 10)
        section[start : start + 10] = chance.choice(HUGE)
    section = section[: len(section) - chance.choice((0, 0, 0, 1, chance.randrange(len(section))))]
    place = readable[PAGE - len(section) :]
    place[:] = section
    try:
        decode([batch], [place], start=0, end=chance.choice((1, 100)), columns=columns)
        read += 1
    except CorruptRecordError:
        corrupt += 1
print(read, corrupt)
"""


def test_no_byte_after_a_section_is_read() -> None:
    fuzzing = subprocess.run([sys.executable, "-c", FUZZING], capture_output=True, text=True, check=False)
    assert fuzzing.returncode == 0, fuzzing.stderr
    read, corrupt = map(int, fuzzing.stdout.split())
    assert read > 1000
    assert corrupt > 1000
