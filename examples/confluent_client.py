"""Produces and consumes with confluent-kafka: any Kafka client works unchanged.

Start a broker first: moldau serve
Run: pip install confluent-kafka; python examples/confluent_client.py [bootstrap servers]
"""

import sys

from confluent_kafka import Consumer, KafkaError, Message, Producer

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"


def on_delivery(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        raise SystemExit(f"not delivered: {error}")
    print(f"stored at offset {message.offset()}")


producer = Producer({"bootstrap.servers": BOOTSTRAP, "enable.idempotence": True})
producer.produce("confluent-orders", b"tea", on_delivery=on_delivery)
producer.flush(30)

consumer = Consumer({"bootstrap.servers": BOOTSTRAP, "group.id": "confluent-billing", "auto.offset.reset": "earliest"})
consumer.subscribe(["confluent-orders"])
while (message := consumer.poll(1)) is None or message.error() is not None:
    pass
print(f"received {message.value()!r}")
consumer.close()
