"""A node process with an HTTP server, and a client of the simple HTTP API."""

import re

import httpx

from support.broker_process import BrokerProcess


def http_address(process: BrokerProcess) -> str:
    """Returns the address that a process printed at its start."""
    found = re.search(r"HTTP on http://([0-9.:]+)", process.output())
    assert found is not None, process.output()
    return found[1]


class HttpNode:
    def __init__(self, process: BrokerProcess) -> None:
        self.process = process
        self.http_address = http_address(process)
        self.client = httpx.Client(base_url=f"http://{self.http_address}", timeout=60)

    @property
    def bootstrap(self) -> str:
        return self.process.bootstrap

    def create_topic(self, name: str, partitions: int = 1) -> None:
        body = {"topic_name": name, "partition_count": partitions}
        assert self.client.post("/admin/v1/topics", json=body).status_code == 201

    def produce(self, partition: str, payload: str, **fields: object) -> None:
        body = {"topic_partition": partition, "payload": payload, **fields}
        response = self.client.post("/data/v1/produce", json=body)
        assert response.status_code == 204, response.text

    def consume(self, partition: str, last_offset: int = -1, max_batch_size: int = 100) -> dict[str, object]:
        body = {"topic_partition": partition, "last_offset": last_offset, "max_batch_size": max_batch_size}
        response = self.client.post("/data/v1/consume", json=body)
        assert response.status_code == 200, response.text
        found: dict[str, object] = response.json()
        return found
