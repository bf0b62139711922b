"""Runs the commands of a transcript on the replicas of one partition, and prints their logs. `m0@0` is record m0 of
leader epoch 0."""

import asyncio

from moldau.controller.requests import IsrChangeResult
from moldau.errors import MoldauError
from moldau.partitions.partition import DivergingEpochError, LogReadInfo
from moldau.raft.messages import EpochEndOffset
from support.replicas import TOPIC_ID, Replicas

LAG_MS = 10_000


class ReplicaTranscriptRunner:
    def __init__(self) -> None:
        self._replicas = Replicas((1, 2))
        self._shown: dict[int, str] = {}
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._responses: dict[int, tuple[int, LogReadInfo]] = {}

    async def execute(self, command: str) -> list[str]:
        lines: list[str] = []
        who, verb, *words = command.split()
        try:
            outcome = await getattr(self, f"_{verb}")(who, *words)
        except MoldauError as error:
            outcome = f"rejected: {type(error).__name__.removesuffix('Error')}"
        for _ in range(20):
            await asyncio.sleep(0)
        if outcome:
            lines.append(f"{who:<10} {outcome}")
        lines += self._acknowledged()
        lines += await self._changed()
        return lines

    # Commands

    async def _are(self, _: str, count: str, *settings: str) -> str:
        """`nodes are 3 min.insync.replicas=2`."""
        to_send = dict(each.split("=") for each in settings)
        self._replicas = Replicas(
            range(1, int(count) + 1),
            min_insync_replicas=int(to_send.get("min.insync.replicas", "1")),
            write_caching=to_send.get("write.caching") == "true",
        )
        return ""

    async def _elects(self, _: str, leader: str, *words: str) -> str:
        """`controller elects 2 of 2,3 uncleanly`: the ISR after `of`. No node has seen the change yet."""
        isr = None
        if "of" in words:
            isr = [int(each) for each in words[words.index("of") + 1].split(",")]
        self._replicas.elect(int(leader), isr, recovering="uncleanly" in words)
        return f"{leader} leads in epoch {self._replicas.image.leader_epoch}"

    async def _tells(self, _: str, nodes: str = "all") -> str:
        await self._replicas.publish_image(*([] if nodes == "all" else map(int, nodes.split(","))))
        return ""

    async def _writes(self, node: str, value: str, acks: str = "acks=all") -> str:
        appended = await self._replicas.produce(int(node), value.encode(), acks_all=acks == "acks=all")
        if acks == "acks=all":
            waiting = self._replicas[int(node)].commit_future(
                appended.next_offset, appended.leader_epoch, acks_all=True
            )
            if waiting is not None:
                self._waiting[value] = waiting
                return f"has {value} at offset {appended.base_offset}; its producer waits"
        return f"has {value} at offset {appended.base_offset}; its producer gets a response"

    async def _fetches(self, node: str, how: str = "") -> str:
        """`2 fetches` and applies the response; `2 fetches in-vain`: the response is lost."""
        follower = int(node)
        asked = self._replicas.build_fetch(follower)
        said = f"asks from {asked.offset}, after epoch {asked.last_fetched_epoch}"
        try:
            fetched = await self._replicas.send_fetch(follower)
        except DivergingEpochError as diverged:
            await self._replicas[follower].follower.truncate_to_divergence(
                EpochEndOffset(diverged.epoch, diverged.end_offset), asked.current_leader_epoch
            )
            return f"{said}: epoch {diverged.epoch} ended at {diverged.end_offset}"
        response = f"{'records' if fetched.records.size else 'nothing new'}, committed below {fetched.high_watermark}"
        if how == "in-vain":
            return f"{said}: {response}, and the response is lost"
        await self._replicas.apply_fetch(follower, fetched)
        return f"{said}: {response}"

    async def _syncs(self, node: str) -> str:
        await self._replicas.log(int(node)).flush()
        return "has all it wrote on disk"

    async def _dies(self, node: str) -> str:
        await self._replicas.lose_power(int(node))
        self._shown.pop(int(node), None)
        return "loses power"

    async def _restarts(self, node: str) -> str:
        self._replicas.restart(int(node))
        return "is back"

    async def _passes(self, seconds: str) -> str:
        """`11s passes`."""
        self._replicas.clock.now_ms += int(seconds.removesuffix("s")) * 1000
        return ""

    async def _proposes(self, node: str) -> str:
        change = self._replicas[int(node)].leader.propose_isr_change(LAG_MS)
        if change is None:
            return "wants no other in-sync set"
        members = ",".join(str(each) for each, _ in change.isr)
        return f"proposes {members} on partition epoch {change.partition_epoch}"

    async def _agrees(self, _: str) -> str:
        """The controller commits what the leader proposed, and responds."""
        image = self._replicas.image
        leader = self._replicas[image.leader]
        change = leader.leader.pending_isr_change
        assert change is not None
        isr = tuple(each for each, _ in change.isr)
        self._replicas.image = type(image)(
            0, image.replicas, isr, image.leader, image.leader_epoch, image.partition_epoch + 1
        )
        leader.leader.on_alter_partition_response(
            IsrChangeResult(TOPIC_ID, 0, image.leader, image.leader_epoch, isr, False, image.partition_epoch + 1)
        )
        return f"in sync are {','.join(map(str, isr))}"

    # Output

    def _acknowledged(self) -> list[str]:
        lines = []
        for value, waiting in list(self._waiting.items()):
            if waiting.done():
                del self._waiting[value]
                error = waiting.exception()
                outcome = "is committed" if error is None else type(error).__name__.removesuffix("Error")
                lines.append(f"{'producer':<10} of {value}: {outcome}")
        return lines

    async def _changed(self) -> list[str]:
        """Returns the logs that changed since they were last printed."""
        lines = []
        for node, partition in sorted(self._replicas.partitions.items()):
            role = "leads" if partition.is_leader else "follows" if partition.is_follower else "waits"
            values = " ".join(await self._replicas.values(node)) or "nothing"
            shown = f"{role:<8} {values}, committed below {partition.high_watermark}"
            if self._shown.get(node) != shown:
                self._shown[node] = shown
                lines.append(f"{node:<10} {shown}")
        return lines
