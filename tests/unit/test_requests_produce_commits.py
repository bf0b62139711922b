"""What a produce of several partitions is answered when leaders and leases change while it waits."""

import asyncio
from typing import Any

from moldau.client.errors import ErrorCode
from moldau.requests.a00_produce import _check_leases, _success, _wait_committed, _Written
from support.replicas import Replicas

PATIENCE_S = 20


async def written(index: int, replicas: Replicas, value: bytes) -> _Written:
    appended = await replicas.produce(1, value)
    return _Written(replicas[1], appended, _success(index, replicas[1], appended))


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def run(main: Any) -> None:
    asyncio.run(asyncio.wait_for(main, PATIENCE_S))


def test_records_that_were_cut_off_while_another_partition_was_waited_for_are_not_acknowledged() -> None:
    async def main() -> None:
        slow, other = Replicas((1, 2)), Replicas((1, 2, 3))
        await slow.begin()
        await other.begin()
        waiting = [await written(0, slow, b"slow"), await written(1, other, b"lost")]
        answering = asyncio.ensure_future(_wait_committed(waiting, 30_000))
        await turns()
        # Another node leads for a while, and what only this one has is cut off.
        other.elects(2)
        await other.tell()
        await other.produce(2, b"in its place")
        await other.replicate(1, 3)
        other.elects(1)
        await other.tell()
        await other.replicate(2, 3)
        await slow.replicate(2)
        await answering
        assert [each.answer["error_code"] for each in waiting] == [0, ErrorCode.not_leader_or_follower]

    run(main())


def test_a_lease_that_ended_while_another_partition_was_appended_to_is_noticed_without_waiting_too() -> None:
    async def main() -> None:
        first, second = Replicas((1, 2)), Replicas((1, 2))
        await first.begin()
        await second.begin()
        appended = [await written(0, first, b"a")]
        first.leases[1].valid = False
        appended.append(await written(1, second, b"b"))
        _check_leases(appended)
        assert [each.answer["error_code"] for each in appended] == [ErrorCode.not_leader_or_follower, 0]

    run(main())
