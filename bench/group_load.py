"""Group load: members that rebalance and groups that commit, on connections without other traffic.

Members do not wait for a heartbeat interval, so that the brokers' work is measured and not a client's timing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from moldau.client.errors import ErrorCode, KafkaError, raise_for_code
from moldau.client.net.connection import Connection
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

TIMEOUT_MS = 60_000
SESSION_TIMEOUT_MS = 45_000
SUBSCRIPTION = bytes.fromhex("000300000001000474657374ffffffff00000000ffffffffffff")
"""A subscription to the topic `test`, about as long as real ones."""
ASSIGNMENT_BYTES = 60
COMMITTED_PARTITIONS = 10


async def open_coordinator(bootstrap: str, group: str) -> Connection:
    """Opens a connection to the group's coordinator, and waits until there is one."""
    host, port = bootstrap.rsplit(":", 1)
    connection = await Connection.open(host, int(port), client_id="bench")
    deadline = time.monotonic() + TIMEOUT_MS / 1000
    while True:
        response = await connection.call(
            ApiKey.FIND_COORDINATOR, {"key_type": 0, "coordinator_keys": [group]}, timeout_ms=TIMEOUT_MS
        )
        found = response.coordinators[0]
        if found.error_code == ErrorCode.none:
            return connection
        error = KafkaError(found.error_code, found.error_message)
        if not error.is_retriable or time.monotonic() > deadline:
            raise error
        await asyncio.sleep(0.1)


class Member:
    """A group member that does nothing by itself."""

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._group = group
        self.member_id = ""
        self.generation = -1

    async def _call(self, api: ApiKey, **fields: Any) -> Message:
        return await self._connection.call(api, {"group_id": self._group, **fields}, timeout_ms=TIMEOUT_MS)

    async def join(self) -> Message:
        while True:
            response = await self._call(
                ApiKey.JOIN_GROUP,
                session_timeout=SESSION_TIMEOUT_MS,
                rebalance_timeout=TIMEOUT_MS,
                member_id=self.member_id,
                group_instance_id=None,
                protocol_type="consumer",
                protocols=[{"name": "range", "metadata": SUBSCRIPTION}],
                reason=None,
            )
            self.member_id = response.member_id
            if response.error_code == ErrorCode.coordinator_load_in_progress:
                await asyncio.sleep(0.05)
            elif response.error_code == ErrorCode.unknown_member_id:
                # The group completed a rebalance without this member, which joins again as clients do.
                self.member_id = ""
            elif response.error_code != ErrorCode.member_id_required:
                raise_for_code(response.error_code)
                self.generation = response.generation_id
                return response

    async def sync(self, members: Sequence[Any]) -> int:
        response = await self._call(
            ApiKey.SYNC_GROUP,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[{"member_id": each.member_id, "assignment": bytes(ASSIGNMENT_BYTES)} for each in members],
        )
        return int(response.error_code)

    async def heartbeat(self) -> int:
        response = await self._call(
            ApiKey.HEARTBEAT, generation_id=self.generation, member_id=self.member_id, group_instance_id=None
        )
        return int(response.error_code)

    async def join_and_sync(self) -> None:
        while True:
            joined = await self.join()
            code = await self.sync(joined.members)
            if code != ErrorCode.rebalance_in_progress:
                raise_for_code(code)
                return

    async def follow(self) -> None:
        """Sends heartbeats until the group rebalances, then rejoins."""
        while (code := await self.heartbeat()) == ErrorCode.none:
            await asyncio.sleep(0)
        if code != ErrorCode.rebalance_in_progress:
            raise_for_code(code)
        await self.join_and_sync()

    async def leave(self) -> None:
        member = {"member_id": self.member_id, "group_instance_id": None, "reason": None}
        response = await self._call(ApiKey.LEAVE_GROUP, members=[member])
        raise_for_code(response.error_code)
        self.member_id = ""

    def close(self) -> None:
        self._connection.close()


async def _form(bootstrap: str, size: int) -> list[Member]:
    """Returns a stable group of `size` members."""
    group = f"bench-{uuid4().hex[:12]}"
    members = [Member(await open_coordinator(bootstrap, group), group) for _ in range(size)]
    await asyncio.gather(*(member.join_and_sync() for member in members))
    while True:
        codes = await asyncio.gather(*(member.heartbeat() for member in members))
        late = [member for member, code in zip(members, codes, strict=True) if code]
        if not late:
            return members
        await asyncio.gather(*(member.join_and_sync() for member in members))


async def rebalances(bootstrap: str, size: int, count: int) -> list[float]:
    """Returns the seconds from the join of one more member until all have their assignment, and the same for its
    leave."""
    members = await _form(bootstrap, size)
    taken = []
    for number in range(count):
        began = time.perf_counter()
        if number % 2 == 0:
            newcomer = Member(await open_coordinator(bootstrap, members[0]._group), members[0]._group)
            began = time.perf_counter()
            await asyncio.gather(newcomer.join_and_sync(), *(member.follow() for member in members))
            members.append(newcomer)
        else:
            leaver = members.pop()
            began = time.perf_counter()
            await leaver.leave()
            await asyncio.gather(*(member.follow() for member in members))
            leaver.close()
        taken.append(time.perf_counter() - began)
    for member in members:
        await member.leave()
        member.close()
    return taken


def _commit(group: str, topic: str, offset: int, partitions: int) -> dict[str, Any]:
    return {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time": -1,
        "topics": [
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": offset,
                        "committed_leader_epoch": -1,
                        "committed_metadata": "",
                    }
                    for index in range(partitions)
                ],
            }
        ],
    }


async def _commit_once(connection: Connection, tree: dict[str, Any]) -> None:
    while True:
        response = await connection.call(ApiKey.OFFSET_COMMIT, tree, timeout_ms=TIMEOUT_MS)
        code = response.topics[0].partitions[0].error_code
        if code != ErrorCode.coordinator_load_in_progress:
            raise_for_code(code)
            return
        await asyncio.sleep(0.05)


async def commits(bootstrap: str, topic: str, groups: int, connections: int, seconds: float) -> tuple[int, float]:
    """Commits ten partitions per group, repeatedly; returns commits and seconds."""
    names = [f"bench-commit-{number}" for number in range(groups)]
    lines = [await open_coordinator(bootstrap, names[0]) for _ in range(connections)]
    deadline = time.perf_counter() + seconds
    done = 0

    async def work(number: int) -> None:
        nonlocal done
        offset = 0
        while time.perf_counter() < deadline:
            offset += 1
            await _commit_once(lines[number % connections], _commit(names[number], topic, offset, COMMITTED_PARTITIONS))
            done += 1

    began = time.perf_counter()
    await asyncio.gather(*(work(number) for number in range(groups)))
    elapsed = time.perf_counter() - began
    for line in lines:
        line.close()
    return done, elapsed


async def commit_latencies(bootstrap: str, topic: str, count: int) -> list[float]:
    """Returns the seconds of each of `count` sequential commits of one partition."""
    group = f"bench-{uuid4().hex[:12]}"
    connection = await open_coordinator(bootstrap, group)
    taken = []
    for number in range(count):
        tree = _commit(group, topic, number, 1)
        began = time.perf_counter()
        await _commit_once(connection, tree)
        taken.append(time.perf_counter() - began)
    connection.close()
    return taken
