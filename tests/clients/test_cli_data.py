"""Positions, formats and JSON of `moldau consume` and `moldau produce`, against a broker."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from moldau.cli.commands import app
from moldau.cli.stdio import LINE_BYTES_MAX
from moldau.client import Admin, Consumer, Producer, TopicPartition
from moldau.client.record import ConsumerRecord
from moldau.testing import Broker

Moldau = Callable[..., Result]
TIMEOUT_S = 30
START_MS = 1_700_000_000_000


class Payload(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = START_MS
    partition: int = 0


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def moldau(broker: Broker) -> Moldau:
    def run(*arguments: str, typed: str | bytes = b"", fails: bool = False) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=typed, env={"MOLDAU_BOOTSTRAP": broker.bootstrap})
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
        assert (result.exit_code != 0) == fails, result.output
        return result

    return run


def create(broker: Broker, topic: str, partitions: int = 1) -> str:
    async def run() -> None:
        async with Admin(broker.bootstrap) as admin:
            # Retention must not delete the records, whose timestamps are old.
            await admin.create_topic(topic, partitions, configs={"retention.ms": "-1"})

    asyncio.run(run())
    return topic


def put(broker: Broker, topic: str, payloads: Sequence[Payload]) -> None:
    async def run() -> None:
        async with Producer(broker.bootstrap) as producer:
            deliveries = [
                await producer.send(
                    topic, value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
                )
                for key, value, headers, timestamp_ms, partition in payloads
            ]
            await asyncio.gather(*deliveries)

    asyncio.run(run())


def taken(broker: Broker, topic: str, count: int) -> list[Payload]:
    """The first so many records of all partitions, by partition and offset."""

    async def run() -> list[ConsumerRecord]:
        async with Consumer(broker.bootstrap, auto_offset_reset="earliest") as consumer:
            partitions = (await consumer.cluster.wait_for_topics([topic]), consumer.cluster.topics[topic].partitions)[1]
            consumer.assign(TopicPartition(topic, each.index) for each in partitions)
            found: list[ConsumerRecord] = []
            while len(found) < count:
                found += await consumer.poll(max_records=count - len(found))
            return sorted(found, key=lambda record: (record.partition, record.offset))

    records = asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))
    return [Payload(each.key, each.value, tuple(each.headers), each.timestamp, each.partition) for each in records]


@pytest.fixture(scope="module")
def minutes(broker: Broker) -> str:
    """A topic with the records 0 to 9, one per minute; even ones are in partition 0, odd ones in partition 1."""
    topic = create(broker, "minutes", 2)
    put(broker, topic, [Payload(None, b"%d" % n, (), START_MS + n * 60_000, n % 2) for n in range(10)])
    return topic


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--from", "beginning"], "0123456789"),
        (["--from", "end"], ""),
        (["--from", "3"], "6789"),
        (["--from", "1200"], ""),
        (["--from", "-1"], "89"),
        (["--from", "-100"], "0123456789"),
        (["--from", "2023-11-14T22:17:20Z"], "456789"),
        (["--from", f"@{START_MS + 60_001}"], "23456789"),
        (["--from", "1 minute ago"], ""),
        (["--from", "@0", "--until", f"@{START_MS + 60_000}"], "0"),
        (["--until", "1"], "01"),
        (["--until", "-1"], "01234567"),
        (["--until", "beginning"], ""),
        (["--from", "1", "--until", "3", "--partition", "1"], "35"),
        (["--partition", "0"], "02468"),
        (["--until", "end", "--count", "3", "--partition", "0"], "024"),
    ],
)
def test_reading_starts_and_stops_at_positions(
    moldau: Moldau, minutes: str, arguments: list[str], expected: str
) -> None:
    ends = [] if "--until" in arguments else ["--exit"]
    assert sorted(moldau("consume", minutes, *arguments, *ends).stdout.split()) == list(expected)


def test_an_offset_that_no_partition_has_is_reported(broker: Broker, moldau: Moldau, minutes: str) -> None:
    told = moldau("consume", minutes, "--from", "1200", "--exit").stderr
    assert told == "No partition has offset 1200 yet: reading from the end, which is offset 5.\n"
    topic = create(broker, "trimmed")
    put(broker, topic, [Payload(None, b"x")] * 3)

    async def trim() -> None:
        async with Admin(broker.bootstrap) as admin:
            assert await admin.delete_records({TopicPartition(topic, 0): 2}) == {TopicPartition(topic, 0): 2}

    asyncio.run(trim())
    trimmed = moldau("consume", topic, "--from", "1", "--exit")
    assert "Offset 1 was deleted in all partitions: reading from the log start, offset 2." in trimmed.stderr
    assert trimmed.stdout == "x\n"


def test_reading_until_a_position_ends_while_records_are_produced(broker: Broker) -> None:
    """`--exit` waits for a pause of the producers; the end of `--until end` is fixed at the start."""
    topic = create(broker, "busy")

    async def run() -> int:
        async with Producer(broker.bootstrap) as producer:
            for _ in range(100):
                await producer.send(topic, b"x")
            await producer.flush()
            consuming = await asyncio.create_subprocess_exec(
                *[sys.executable, "-m", "moldau", "consume", topic, "--until", "end", "-b", broker.bootstrap],
                stdout=subprocess.PIPE,
            )
            printed = asyncio.create_task(consuming.communicate())
            while not printed.done():
                await (await producer.send(topic, b"x"))
            return (await printed)[0].count(b"x\n")

    # The end was looked up after the first 100 records, and before the process had ended.
    assert asyncio.run(asyncio.wait_for(run(), TIMEOUT_S)) >= 100


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--from", "soon"], "Invalid value for --from: 'soon' is not a position"),
        (["--from", "2999-01-01"], "is in the future"),
        (["--until", "five minutes ago"], "Invalid value for --until"),
        (["--from", "0", "--from-beginning"], "either --from or --from-beginning"),
        (["--from", "0", "--group", "g"], "moldau group reset g"),
        (["--until", "end", "--group", "g"], "--until: cannot be used with --group"),
        (["--partition", "0", "--group", "g"], "--partition: cannot be used with --group"),
        (["--json", "--format", "%s"], "either --format or --json"),
        (["--format", "%z"], "Invalid value for --format: %z is not a token"),
        (["--partition", "7", "--exit"], "minutes has 2 partitions; there is no partition 7"),
    ],
)
def test_invalid_options_are_reported(moldau: Moldau, minutes: str, arguments: list[str], told: str) -> None:
    shown = moldau("consume", minutes, *arguments, fails=True).output
    assert told in " ".join(shown.replace("│", "").split())


KCAT_FORMAT = r"é %t %p %o %T %k %K %s %S [%h] %R \x41 \x42G \101\65\t\r\\%%|\%s\n"


@pytest.mark.skipif(shutil.which("kcat") is None, reason="the kcat binary is not installed")
def test_formats_print_what_kcat_prints(broker: Broker) -> None:
    topic = create(broker, "formats")
    headers = (("a", b"1"), ("b", None), ("a", b""))
    put(broker, topic, [Payload(b"key", b"\xff\n", headers), Payload(None, None), Payload(b"", b"")])
    kcat = ["kcat", "-C", "-q", "-e", "-b", broker.bootstrap, "-t", topic, "-o", "beginning", "-f", KCAT_FORMAT]
    moldau = [sys.executable, "-m", "moldau", "consume", topic, "-e", "-b", broker.bootstrap, "-f", KCAT_FORMAT]
    expected, printed = (subprocess.run(each, capture_output=True, timeout=TIMEOUT_S) for each in (kcat, moldau))
    assert printed.returncode == 0, printed.stderr
    assert expected.stdout.count(b"formats") == 3
    assert printed.stdout == expected.stdout


# JSON

names = st.text(max_size=5) | st.binary(max_size=5).map(lambda name: name.decode("utf-8", "surrogateescape"))
binary = st.none() | st.binary(max_size=50) | st.text(max_size=20).map(str.encode)
payloads = st.builds(
    Payload,
    binary,
    binary,
    st.lists(st.tuples(names, binary), max_size=3).map(tuple),
    st.integers(0, START_MS),
    st.integers(0, 2),
)


def copy(broker: Broker, source: str, target: str) -> subprocess.CompletedProcess[bytes]:
    moldau = f"{sys.executable} -m moldau"
    script = f"{moldau} consume {source} --exit --json | {moldau} produce {target} --json"
    environment = {**os.environ, "MOLDAU_BOOTSTRAP": broker.bootstrap}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script], env=environment, capture_output=True, timeout=TIMEOUT_S
    )


def test_a_copy_through_json_has_the_same_records(broker: Broker) -> None:
    header_names = ("a", "a", "", "é", b"\xff".decode("utf-8", "surrogateescape"))
    written = [
        Payload(b"\xff\xfe", b'{"base64": "/w=="}', tuple((name, b"\x80") for name in header_names), START_MS + 1),
        Payload(None, b"", (("null", None), ("empty", b""))),
        Payload(b"", None, partition=1),
        Payload(b"line\nbreak", bytes(range(256)) * 100, timestamp_ms=0, partition=2),
        *(Payload(b"%d" % n, b"%d" % n, partition=n % 3, timestamp_ms=START_MS + n) for n in range(1_000)),
    ]
    source, target = create(broker, "source", 3), create(broker, "target", 3)
    put(broker, source, written)
    done = copy(broker, source, target)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b"1004 records acknowledged.\n"
    expected = sorted(written, key=lambda payload: payload.partition)
    assert taken(broker, target, len(written)) == expected


@settings(
    max_examples=10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    # An example takes a second, so failed ones are not minimised.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
@given(written=st.lists(payloads, min_size=1, max_size=20))
def test_any_records_are_copied_through_json(broker: Broker, moldau: Moldau, written: list[Payload]) -> None:
    suffix = time.monotonic_ns()
    source, target = create(broker, f"any-{suffix}", 3), create(broker, f"copy-{suffix}", 3)
    put(broker, source, written)
    lines = moldau("consume", source, "--exit", "--json").stdout_bytes
    moldau("produce", target, "--json", typed=lines)
    assert taken(broker, target, len(written)) == sorted(written, key=lambda payload: payload.partition)


def test_a_line_that_is_not_a_record_is_reported_with_its_number(broker: Broker, moldau: Moldau) -> None:
    topic = create(broker, "lines")
    told = moldau("produce", topic, "--json", typed=b'{"value": "1"}\n\n{"vlaue": "2"}\n{"value": "3"}\n', fails=True)
    error, counts = told.stderr.splitlines()
    assert error.startswith("Line 3: unknown field 'vlaue'; did you mean value?")
    assert counts == "1 record acknowledged."
    assert [each.value for each in taken(broker, topic, 1)] == [b"1"]


def test_a_record_that_is_too_large_is_reported_with_its_line(broker: Broker, moldau: Moldau) -> None:
    topic = create(broker, "large")
    lines = "\n".join(json.dumps({"value": each}) for each in ("small", "x" * 1_100_000))
    refused = moldau("produce", topic, "--json", typed=lines, fails=True).stderr
    assert "line 2: the record is larger than max.message.bytes of large" in refused
    assert "1 of 2 records acknowledged" in refused
    assert (
        "line 2 is longer than" in moldau("produce", topic, typed="\n" + "x" * (LINE_BYTES_MAX + 1), fails=True).stderr
    )
    # Control characters need six bytes each in JSON.
    moldau("produce", topic, "--json", typed=json.dumps({"value": "\0" * 1_000_000}))


def test_records_as_large_as_the_topics_allow_are_copied(broker: Broker, moldau: Moldau) -> None:
    source, target = create(broker, "large-source"), create(broker, "large-target")
    for topic in (source, target):
        moldau("topic", "alter", topic, "--config", "max.message.bytes=12000000")
    for value in (b"y" * 3_000_000, b"\xff" * 10_000_000):
        moldau("produce", source, typed=value)
    lines = moldau("consume", source, "--exit", "--json").stdout_bytes
    moldau("produce", target, "--json", typed=lines)
    assert [each.value for each in taken(broker, target, 2)] == [b"y" * 3_000_000, b"\xff" * 10_000_000]


def test_partitions_are_kept_unless_the_target_has_fewer(broker: Broker, moldau: Moldau) -> None:
    topic = create(broker, "fewer")
    line = json.dumps({"value": "x", "partition": 2})
    refused = moldau("produce", topic, "--json", typed=line, fails=True).stderr
    assert "Line 1: fewer has 1 partition; there is no partition 2. Use --repartition" in refused
    assert "moldau topic alter fewer --partitions 3" in refused
    moldau("produce", topic, "--json", "--repartition", typed=line)
    moldau("produce", topic, "--json", "--partition", "0", typed=line)
    assert [each.value for each in taken(broker, topic, 2)] == [b"x", b"x"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(["--json", "--key-separator", ":"], "either --json or --key-separator"), (["--repartition"], "add --json")],
)
def test_options_that_exclude_each_other_are_reported(moldau: Moldau, arguments: list[str], told: str) -> None:
    assert told in " ".join(moldau("produce", "x", *arguments, fails=True).output.replace("│", "").split())


# Pipes


def test_a_reader_that_exits_ends_a_consumer_that_waits_for_records(broker: Broker) -> None:
    topic = create(broker, "head")
    put(broker, topic, [Payload(None, b"first")])
    script = f"{sys.executable} -m moldau consume {topic} --from beginning | head -1; echo ${{PIPESTATUS[0]}}"
    environment = {**os.environ, "MOLDAU_BOOTSTRAP": broker.bootstrap}
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, timeout=TIMEOUT_S)
    assert (done.stdout, done.stderr) == (b"first\n0\n", b"")
