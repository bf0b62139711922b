"""Produces the keys and payloads that the user enters, until an empty line or the end of the input.

A record may be stored twice if its leader fails before it responds, because the record is then sent to the next leader.
"""

import sys

from brokers import ArgumentParser, Brokers, RequestFailedError, describe_refusal, run

OK, NO_CONTENT = 200, 204
INTERRUPTED = 130

_SEED = 0x9747B28C
_MULTIPLIER = 0x5BD1E995
_MASK = 0xFFFFFFFF


def main() -> int:
    parser = ArgumentParser("Produce records, one by one. An empty line ends the script.")
    parser.add_argument("topic", help="name of the topic")
    parser.add_argument(
        "-a",
        dest="acks",
        choices=("all", "1", "0"),
        default="all",
        help="who must store a record before it is OK: all in-sync brokers, the leader (1) or none (0); all by default",
    )
    arguments = parser.parse_args()
    brokers = Brokers(arguments.brokers)
    try:
        partition_count = count_partitions(brokers, arguments.topic)
        while (record := read_record()) is not None:
            produce(brokers, arguments.topic, partition_count, *record, acks=arguments.acks)
            print("> OK\n", flush=True)
    except (RequestFailedError, UnicodeError) as error:
        print(f"> ERROR: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def count_partitions(brokers: Brokers, topic: str) -> int:
    """Raises RequestFailedError if the topic does not exist."""
    response = brokers.request("GET", "/admin/v1/topics")
    if response.status_code != OK:
        raise RequestFailedError(describe_refusal(response))
    for each in response.json()["topics"]:
        if each["topic_name"] == topic:
            return len(each["partitions"])
    raise RequestFailedError(f"topic {topic} does not exist")


def read_record() -> tuple[str, str] | None:
    """Returns the next key and payload, or None at an empty line or the end of the input."""
    try:
        key = input("Key: ")
        payload = input("Payload: ") if key else ""
    except EOFError:
        return None
    return (key, payload) if payload else None


def produce(brokers: Brokers, topic: str, partition_count: int, key: str, payload: str, *, acks: str) -> None:
    """Raises RequestFailedError if the record is not published."""
    body = {
        "topic_partition": f"{topic}-{partition_of(key, partition_count)}",
        "key": key,
        "payload": payload,
        "acks": acks,
    }
    response = brokers.request("POST", "/data/v1/produce", body)
    if response.status_code != NO_CONTENT:
        raise RequestFailedError(describe_refusal(response))


def partition_of(key: str, partition_count: int) -> int:
    """Returns the partition of a key, from 1 on. It is the one that Kafka's producers choose."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partition_count + 1


def murmur2(data: bytes) -> int:
    """Returns the hash that Kafka's producers use, as an unsigned 32-bit integer."""
    length = len(data)
    value = _SEED ^ length
    whole = length & ~3
    for position in range(0, whole, 4):
        part = int.from_bytes(data[position : position + 4], "little") * _MULTIPLIER & _MASK
        part = (part ^ part >> 24) * _MULTIPLIER & _MASK
        value = (value * _MULTIPLIER & _MASK) ^ part
    if whole < length:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    value = (value ^ value >> 13) * _MULTIPLIER & _MASK
    return value ^ value >> 15


if __name__ == "__main__":
    run(main)
