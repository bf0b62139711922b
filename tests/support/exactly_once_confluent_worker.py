"""A process that copies a topic to another one with librdkafka's transactions, until it is killed. Prints a line per
committed transaction. Every seventh transaction is aborted and repeated."""

import argparse
import itertools

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Message, Producer, TopicPartition

MAX_RECORDS = 20
POLL_S = 0.1


def copy(arguments: argparse.Namespace) -> None:
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": arguments.group,
            # A successor gets the partitions at once.
            "group.instance.id": arguments.worker,
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 300,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    producer = Producer(
        {"bootstrap.servers": arguments.bootstrap, "transactional.id": arguments.worker, "linger.ms": 0, "log_level": 0}
    )
    producer.init_transactions()
    consumer.subscribe([arguments.input])
    for number in itertools.count(1):
        found = consumer.consume(MAX_RECORDS, POLL_S)
        messages = [message for message in found if message.error() is None]
        if messages and copy_messages(messages, consumer, producer, arguments.output, commit=number % 7 != 0):
            print(len(messages), flush=True)


def copy_messages(
    messages: list[Message], consumer: Consumer, producer: Producer, output: str, *, commit: bool
) -> bool:
    """Returns whether the transaction was committed. If not, the consumer reads the messages again. Raises an error
    after which the producer cannot be used any more."""
    try:
        producer.begin_transaction()
        for message in messages:
            producer.produce(output, message.value(), message.key(), partition=_partition(message))
        # Positions are behind the consumed messages, also where control batches follow.
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        if commit:
            producer.commit_transaction()
            return True
        producer.flush()
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise
    producer.abort_transaction()
    for each in consumer.committed(consumer.assignment()):
        consumer.seek(TopicPartition(each.topic, each.partition, max(each.offset, OFFSET_BEGINNING)))
    return False


def _partition(message: Message) -> int:
    partition = message.partition()
    assert partition is not None
    return partition


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("bootstrap", "input", "output", "group", "worker"):
        parser.add_argument(name)
    copy(parser.parse_args())


if __name__ == "__main__":
    main()
