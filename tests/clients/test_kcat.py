"""kcat, unchanged, as a process."""

import json
import shutil
import subprocess
import time

import pytest

from support.topics import Topics
from support.wire import stored_codec

pytestmark = pytest.mark.skipif(shutil.which("kcat") is None, reason="the kcat binary is not installed")
HOUR_MS = 3_600_000


def kcat(bootstrap: str, *arguments: str, stdin: str = "") -> str:
    done = subprocess.run(
        ["kcat", "-b", bootstrap, *arguments], input=stdin, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def consume(bootstrap: str, topic: str, *arguments: str) -> list[dict[str, object]]:
    lines = kcat(bootstrap, "-C", "-q", "-e", "-J", "-t", topic, *arguments).splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_compression_are_read(bootstrap: str, topics: Topics, codec: str) -> None:
    topic = topics.create()
    values = [f"{number} " * 50 + "end" for number in range(100)]
    kcat(bootstrap, "-P", "-t", topic, "-z", codec, stdin="\n".join(values))
    assert [record["payload"] for record in consume(bootstrap, topic, "-o", "beginning")] == values
    assert stored_codec(bootstrap, topic) == codec


def test_keys_headers_and_null_values_round_trip(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    kcat(bootstrap, "-P", "-t", topic, "-K", ":", "-H", "a=1", "-H", "b=2", stdin="key:value\n")
    kcat(bootstrap, "-P", "-t", topic, "-K", ":", "-Z", stdin="tombstone:\n")
    full, tombstone = consume(bootstrap, topic, "-o", "beginning")
    assert (full["key"], full["payload"], full["headers"]) == ("key", "value", ["a", "1", "b", "2"])
    assert (tombstone["key"], tombstone["payload"]) == ("tombstone", None)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_kind_of_acknowledgement_is_served(bootstrap: str, topics: Topics, acks: str) -> None:
    topic = topics.create()
    kcat(bootstrap, "-P", "-t", topic, "-X", f"acks={acks}", stdin="a\nb\n")
    assert [record["payload"] for record in consume(bootstrap, topic, "-o", "beginning")] == ["a", "b"]


def test_an_idempotent_producer_is_served(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    kcat(bootstrap, "-P", "-t", topic, "-X", "enable.idempotence=true", stdin="a\nb\n")
    assert [record["offset"] for record in consume(bootstrap, topic, "-o", "beginning")] == [0, 1]


def test_consuming_starts_at_the_given_position(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    kcat(bootstrap, "-P", "-t", topic, stdin="\n".join(str(number) for number in range(10)))
    assert [record["offset"] for record in consume(bootstrap, topic, "-o", "7")] == [7, 8, 9]
    assert [record["offset"] for record in consume(bootstrap, topic, "-o", "-2")] == [8, 9]
    assert [record["offset"] for record in consume(bootstrap, topic, "-o", "2", "-c", "3")] == [2, 3, 4]
    now = int(time.time() * 1000)
    assert len(consume(bootstrap, topic, "-o", f"s@{now - HOUR_MS}", "-o", f"e@{now + HOUR_MS}")) == 10
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:{now - HOUR_MS}").strip() == f"{topic} [0] offset 0"
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:-1").strip() == f"{topic} [0] offset 10"
    assert kcat(bootstrap, "-Q", "-t", f"{topic}:0:-2").strip() == f"{topic} [0] offset 0"


def test_metadata_lists_brokers_and_topics(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(partitions=3)
    everything = json.loads(kcat(bootstrap, "-L", "-J"))
    assert [broker["name"] for broker in everything["brokers"]] == [bootstrap]
    assert topic in [each["topic"] for each in everything["topics"]]
    (only,) = json.loads(kcat(bootstrap, "-L", "-J", "-t", topic))["topics"]
    assert [partition["partition"] for partition in only["partitions"]] == [0, 1, 2]
    assert {partition["leader"] for partition in only["partitions"]} == {everything["brokers"][0]["id"]}
