"""Reading of the topic of reports while its end cannot be reached."""

import asyncio
from collections.abc import Iterable

import pytest

from moldau.client import Cluster, Consumer, RequestTimedOutError, TopicPartition
from moldau.pipelines.runtime.report_reader import read_reports
from moldau.testing import Broker


def test_reading_ends_if_no_report_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ends_beyond_the_log(_: Consumer, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(partitions, 1)

    monkeypatch.setattr(Consumer, "end_offsets", ends_beyond_the_log)

    async def main() -> None:
        async with (
            Broker(topics={"reports": 1}) as broker,
            Cluster(broker.bootstrap, request_timeout_ms=500) as cluster,
        ):
            with pytest.raises(RequestTimedOutError):
                await asyncio.wait_for(read_reports(cluster, "reports"), 20)

    asyncio.run(main())
