"""A well-behaved client, which must not notice what other clients do to the broker."""

from support.wire import WireClient, batch, end_offset, fetch, produce


class HealthyClient:
    """A client with one connection and one topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.wire = WireClient(bootstrap)
        self.topic = topic
        self.written = end_offset(self.wire, topic)

    def check(self) -> bool:
        assert produce(self.wire, self.topic, batch([b"fine"])) == (0, self.written)
        answer = fetch(self.wire, self.topic, self.written)
        assert answer["error_code"] == 0
        assert b"fine" in answer["records"]
        self.written += 1
        return True
