"""A node process with an HTTP server, and a client of the simple HTTP API."""

import httpx

from support.broker_process import BrokerProcess


class HttpNode:
    def __init__(self, process: BrokerProcess, http_port: int) -> None:
        self.process = process
        self.http_address = f"127.0.0.1:{http_port}"
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
