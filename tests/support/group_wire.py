"""A classic group at a broker's socket, with the interface of the harness for the pure state machine.

Every request has its own connection, and responses are recorded by ticket. The broker's member ids are shown as the ids
that the requests proposed.
"""

import select
import time
from collections.abc import Mapping
from typing import Any

from moldau.coordinator.result import RequestId
from moldau.error_codes import ERROR_CODES
from moldau.errors import MemberIdRequiredError, MoldauError
from moldau.groups.records import GroupRecord
from moldau.groups.requests import (
    EMPTY_RESPONSE,
    UNKNOWN_MEMBER_ID,
    GroupResponse,
    JoinedMember,
    JoinResponse,
    LeaveResult,
    LeavingMember,
    Protocol,
    SyncResponse,
)
from support.wire import WireClient

METADATA, OFFSET_COMMIT, FIND_COORDINATOR = 3, 8, 10
JOIN_GROUP, HEARTBEAT, LEAVE_GROUP, SYNC_GROUP, DESCRIBE_GROUPS = 11, 12, 13, 14, 15

QUIET_S = 0.25
"""A request without a response after this time is pending."""

TRANSIENT = {14, 15, 16}
"""Errors while the coordinator is loading or moving."""


class WireGroupHarness:
    def __init__(self, bootstrap: str, group_id: str, topic: str = "orders") -> None:
        self.responses: dict[RequestId, GroupResponse | MoldauError] = {}
        self.log: list[GroupRecord] = []
        """Always empty: records are not visible over the wire."""
        self._bootstrap = bootstrap
        self._group_id = group_id
        self._topic = topic
        self._waiting: dict[RequestId, tuple[WireClient, int, int, str]] = {}
        """Connection, API, version, and the member id that was proposed."""
        self._shown: dict[str, str] = {UNKNOWN_MEMBER_ID: UNKNOWN_MEMBER_ID}
        self._real: dict[str, str] = {UNKNOWN_MEMBER_ID: UNKNOWN_MEMBER_ID}
        self._request_ids = 0

    def prepare(self) -> None:
        """Waits for a coordinator and for a topic to commit offsets of."""
        with WireClient(self._bootstrap) as wire:
            while wire.request(METADATA, 9, {"topics": [{"name": self._topic}], "allow_auto_topic_creation": True})[
                "topics"
            ][0]["error_code"]:
                time.sleep(QUIET_S)
            tree = {"key_type": 0, "coordinator_keys": [self._group_id]}
            while wire.request(FIND_COORDINATOR, 4, tree)["coordinators"][0]["error_code"]:
                time.sleep(QUIET_S)
            described = {"groups": [self._group_id]}
            while wire.request(DESCRIBE_GROUPS, 5, described)["groups"][0]["error_code"] in TRANSIENT:
                time.sleep(QUIET_S)

    def join(
        self,
        member_id: str,
        *,
        instance: str | None,
        protocols: tuple[Protocol, ...],
        session_ms: int,
        rebalance_ms: int,
        requires_known_member_id: bool,
        new_member_id: str,
    ) -> RequestId:
        version = 9 if requires_known_member_id or instance is not None else 3
        tree = {
            "group_id": self._group_id,
            "session_timeout": session_ms,
            "rebalance_timeout": rebalance_ms,
            "member_id": self._real[member_id],
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": [{"name": each.name, "metadata": each.metadata} for each in protocols],
        }
        return self._ask(JOIN_GROUP, version, tree, new_member_id)

    def sync(
        self, member_id: str, assignments: Mapping[str, bytes], *, generation: int, instance: str | None
    ) -> RequestId:
        parts = [{"member_id": self._real[each], "assignment": part} for each, part in assignments.items()]
        tree = {**self._claim(member_id, generation, instance), "assignments": parts}
        return self._ask(SYNC_GROUP, 4, tree)

    def heartbeat(self, member_id: str, *, generation: int, instance: str | None) -> RequestId:
        return self._ask(HEARTBEAT, 4, self._claim(member_id, generation, instance))

    def leave(self, leaving: LeavingMember) -> RequestId:
        member = {"member_id": self._real[leaving.member_id], "group_instance_id": leaving.instance_id}
        return self._ask(LEAVE_GROUP, 5, {"group_id": self._group_id, "members": [member]})

    def commit(self, member_id: str, *, generation: int, instance: str | None) -> None:
        partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}
        tree = {
            **self._claim(member_id, generation, instance),
            "generation_id_or_member_epoch": generation,
            "topics": [{"name": self._topic, "partitions": [partition]}],
        }
        with WireClient(self._bootstrap) as wire:
            code = wire.request(OFFSET_COMMIT, 8, tree)["topics"][0]["partitions"][0]["error_code"]
        if code:
            raise _error(code)

    def wait(self, delay_s: float) -> None:
        time.sleep(delay_s)
        self.gather()

    def gather(self) -> None:
        """Receives the responses that have arrived, in the order of the requests."""
        arrived: dict[RequestId, tuple[int, str, dict[str, Any]]] = {}
        while self._waiting:
            sockets = {wire.socket: request_id for request_id, (wire, _, _, _) in self._waiting.items()}
            ready, _, _ = select.select(list(sockets), [], [], QUIET_S)
            if not ready:
                break
            for each in ready:
                wire, api, version, new_member_id = self._waiting.pop(sockets[each])
                _, response = wire.receive(api, version)
                wire.close()
                arrived[sockets[each]] = (api, new_member_id, response)
        for _, new_member_id, response in arrived.values():
            self._learn(response.get("member_id", UNKNOWN_MEMBER_ID), new_member_id)
        for request_id in sorted(arrived):
            api, _, response = arrived[request_id]
            self.responses[request_id] = self._understood(api, response)

    def close(self) -> None:
        for wire, _, _, _ in self._waiting.values():
            wire.close()
        self._waiting.clear()

    def _claim(self, member_id: str, generation: int, instance: str | None) -> dict[str, Any]:
        return {
            "group_id": self._group_id,
            "generation_id": generation,
            "member_id": self._real[member_id],
            "group_instance_id": instance,
        }

    def _ask(self, api: int, version: int, tree: dict[str, Any], new_member_id: str = UNKNOWN_MEMBER_ID) -> RequestId:
        self._request_ids += 1
        wire = WireClient(self._bootstrap)
        wire.send(api, version, tree)
        self._waiting[self._request_ids] = (wire, api, version, new_member_id)
        self.gather()
        return self._request_ids

    def _learn(self, member_id: str, new_member_id: str) -> None:
        if member_id not in self._shown:
            self._shown[member_id], self._real[new_member_id] = new_member_id, member_id

    def _understood(self, api: int, response: dict[str, Any]) -> GroupResponse | MoldauError:
        if response["error_code"]:
            return _error(response["error_code"], self._shown.get(response.get("member_id", "")) or "")
        if api == JOIN_GROUP:
            return JoinResponse(
                generation=response["generation_id"],
                protocol_type=response.get("protocol_type") or "",
                protocol_name=response["protocol_name"],
                leader=self._shown[response["leader"]],
                skip_assignment=response.get("skip_assignment", False),
                member_id=self._shown[response["member_id"]],
                members=tuple(
                    JoinedMember(self._shown[each["member_id"]], each.get("group_instance_id"), each["metadata"])
                    for each in response["members"]
                ),
            )
        if api == SYNC_GROUP:
            return SyncResponse(protocol_type="", protocol_name="", assignment=response["assignment"])
        if api == LEAVE_GROUP:
            return tuple(
                LeaveResult(
                    self._shown[each["member_id"]],
                    each["group_instance_id"],
                    _error(each["error_code"]) if each["error_code"] else None,
                )
                for each in response["members"]
            )
        return EMPTY_RESPONSE


def _error(code: int, member_id: str = UNKNOWN_MEMBER_ID) -> MoldauError:
    kind = next(kind for kind, its_code in ERROR_CODES.items() if int(its_code) == code)
    return MemberIdRequiredError(member_id) if kind is MemberIdRequiredError else kind("error of the broker")
