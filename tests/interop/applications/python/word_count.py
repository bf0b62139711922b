"""Counts words with quixstreams: splits lines of one topic, sends each word to the partition of its key through a
repartition topic, counts in a RocksDB store with a changelog topic, and writes every change to another topic.

Arguments: bootstrap servers, consumer group, state directory, input topic, output topic.
"""

import sys

from quixstreams import Application, State


def count(_: str, state: State) -> str:
    counted: int = state.get("count", 0) + 1
    state.set("count", counted)
    return str(counted)


def main(bootstrap: str, group: str, state_dir: str, source: str, target: str) -> None:
    application = Application(
        broker_address=bootstrap,
        consumer_group=group,
        state_dir=state_dir,
        auto_offset_reset="earliest",
        commit_interval=0.2,
        loglevel="WARNING",
    )
    text = {"key_deserializer": "str", "value_deserializer": "str", "key_serializer": "str", "value_serializer": "str"}
    lines = application.dataframe(application.topic(source, key_deserializer="str", value_deserializer="str"))
    words = lines.apply(str.split, expand=True).group_by(lambda word: word, name="word", **text)
    counts = words.apply(count, stateful=True)
    counts.to_topic(application.topic(target, key_serializer="str", value_serializer="str"))
    application.run()


main(*sys.argv[1:])
