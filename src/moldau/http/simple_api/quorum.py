"""`/kraft/v1`: votes and announcements of the metadata quorum, and its log as actions on topics.

Requests act on the real quorum, through the same handlers as those of other nodes, so they need the cluster's secret.
"""

import hmac
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Request
from pydantic import BaseModel

from moldau.controller.messages import raise_for_code
from moldau.errors import CorruptRecordError, OffsetOutOfRangeError, SnapshotNotFoundError
from moldau.http.body import Context, RequestBody, body_schema, context_of, json_body
from moldau.http.errors import HttpError
from moldau.http.kafka_requests import execute
from moldau.http.simple_api.fields import Count, Epoch, LastOffset, NodeId
from moldau.http.simple_api.leadership import require_controller, require_ready
from moldau.http.simple_api.topic_actions import TopicAction, TopicActionReader, count_topics
from moldau.http.simple_api.topics import ERRORS
from moldau.raft.messages import NO_EPOCH, EpochEndOffset
from moldau.raft.raft_client import METADATA_LOG
from moldau.server.api import Broker
from moldau.wire.api_keys import ApiKey
from moldau.wire.kio import ErrorCode

VOTE_VERSION, BEGIN_QUORUM_EPOCH_VERSION = 2, 1
VALUES_PER_SLICE = 500


async def require_secret(context: Context, x_cluster_secret: Annotated[str, Header()] = "") -> None:
    """Raises HttpError with status 403 if the request does not have the cluster's secret."""
    settings = context.broker.settings.broker
    # Headers are decoded as Latin-1, but clients send text beyond ASCII as UTF-8.
    secret, received = settings.cluster_secret.encode(), x_cluster_secret.encode("latin-1")
    if settings.http_kraft_open or (secret and hmac.compare_digest(secret, received)):
        return
    raise HttpError(403, "the header X-Cluster-Secret does not have the cluster's secret (cluster.secret)")


router = APIRouter(prefix="/kraft/v1", tags=["simple"], dependencies=[Depends(require_secret)])


class VoteBody(RequestBody):
    candidate_epoch: Epoch
    last_offset: LastOffset
    last_offset_epoch: Epoch
    candidate_id: NodeId


class QuorumEpochBody(RequestBody):
    leader_epoch: Epoch
    leader_id: NodeId


class FetchMetadataBody(RequestBody):
    last_offset: LastOffset
    last_offset_epoch: Epoch
    max_batch_size: Count
    follower_broker_id: NodeId | None = None
    """Accepted and ignored: only Fetch requests of the nodes themselves acknowledge records."""


class GrantView(BaseModel):
    granted: bool
    leader_epoch: int | None = None
    leader_id: int | None = None


class MetadataView(BaseModel):
    records: list[TopicAction]
    diverging_epoch: int | None = None
    diverging_offset: int | None = None


BODY_ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"description": "The body is not JSON, or the quorum rejects the request."},
    403: {"description": "The cluster's secret is missing or wrong."},
    413: {"description": "The body is too large."},
    422: {"description": "A field is unknown, missing or has a wrong type."},
    503: {"description": "The node is not ready."},
    507: {"description": "The disk of the node failed or is full."},
}


@router.post(
    "/voteRequest",
    response_model_exclude_none=True,
    responses=BODY_ERRORS,
    openapi_extra=body_schema(
        VoteBody, {"candidate_epoch": 13, "last_offset": 18, "last_offset_epoch": 12, "candidate_id": "2"}
    ),
)
async def vote_request(
    context: Context, request: Request, body: Annotated[VoteBody, Depends(json_body(VoteBody))]
) -> GrantView:
    log_end = _log_end(body.last_offset, body.last_offset_epoch)
    partition = {
        "replica_epoch": body.candidate_epoch,
        "replica_id": body.candidate_id,
        "replica_directory_id": None,
        "voter_directory_id": None,
        "last_offset_epoch": log_end.epoch,
        "last_offset": log_end.offset,
        "pre_vote": False,
    }
    result = await _execute(request, ApiKey.VOTE, VOTE_VERSION, partition)
    return _view(context.broker, is_granted=result["vote_granted"])


@router.post(
    "/beginQuorumEpoch",
    response_model_exclude_none=True,
    responses=BODY_ERRORS,
    openapi_extra=body_schema(QuorumEpochBody, {"leader_epoch": 1, "leader_id": "3"}),
)
async def begin_quorum_epoch(
    context: Context, request: Request, body: Annotated[QuorumEpochBody, Depends(json_body(QuorumEpochBody))]
) -> GrantView:
    partition = {"leader_id": body.leader_id, "leader_epoch": body.leader_epoch, "voter_directory_id": None}
    result = await _execute(request, ApiKey.BEGIN_QUORUM_EPOCH, BEGIN_QUORUM_EPOCH_VERSION, partition)
    is_followed = (result["leader_epoch"], result["leader_id"]) == (body.leader_epoch, body.leader_id)
    return _view(context.broker, is_granted=is_followed)


@router.post(
    "/fetchMetadata",
    response_model_exclude_none=True,
    responses={**BODY_ERRORS, **ERRORS},
    dependencies=[Depends(require_ready), Depends(require_controller)],
    openapi_extra=body_schema(
        FetchMetadataBody,
        {"last_offset": -1, "last_offset_epoch": -1, "max_batch_size": 100, "follower_broker_id": "2"},
    ),
)
async def fetch_metadata(
    context: Context, body: Annotated[FetchMetadataBody, Depends(json_body(FetchMetadataBody))]
) -> MetadataView:
    quorum, run = context.broker.quorum, context.broker.cpu_budget.run
    if body.last_offset >= 0:
        log_end = EpochEndOffset(body.last_offset_epoch, body.last_offset + 1)
        divergence = quorum.find_divergence(log_end)
        if divergence is not None:
            return MetadataView(records=[], diverging_epoch=divergence.epoch, diverging_offset=divergence.offset - 1)
    reader = TopicActionReader(body.last_offset, body.max_batch_size)
    try:
        snapshot = await quorum.read_base_snapshot()
        if snapshot is not None:
            values = snapshot.values
            slices = [values[start : start + VALUES_PER_SLICE] for start in range(0, len(values), VALUES_PER_SLICE)]
            topic_count = sum([await run(partial(count_topics, each)) for each in slices])
            reader.start_snapshot(snapshot.id, topic_count)
            for each in slices:
                await run(partial(reader.add_snapshot_values, each))
        if quorum.log_start_offset > (0 if snapshot is None else snapshot.id.end_offset):
            raise OffsetOutOfRangeError("the log starts at a newer snapshot now")
        async for batch in quorum.committed_batches():
            await run(partial(reader.add_batch, batch))
            if reader.is_full:
                break
    except (OffsetOutOfRangeError, CorruptRecordError, SnapshotNotFoundError) as error:
        # A new snapshot has replaced the start of the log during the read.
        raise HttpError(503, f"the metadata log cannot be read now: {error}") from error
    return MetadataView(records=reader.actions())


def _log_end(last_offset: int, last_offset_epoch: int) -> EpochEndOffset:
    """Returns the end of a log with this last record. A log without an epoch is empty."""
    return EpochEndOffset(NO_EPOCH, 0) if last_offset_epoch < 0 else EpochEndOffset(last_offset_epoch, last_offset + 1)


async def _execute(request: Request, api_key: ApiKey, version: int, partition: dict[str, Any]) -> dict[str, Any]:
    """Executes a request of the quorum on this node and returns the result for the metadata log."""
    context = context_of(request)
    broker = context.broker
    leader = next((each for each in broker.quorum.voters if each.node_id == partition.get("leader_id")), None)
    tree = {
        "cluster_id": None,
        "voter_id": broker.broker_id,
        "topics": [
            {"topic_name": METADATA_LOG.topic, "partitions": [{"partition_index": METADATA_LOG.partition, **partition}]}
        ],
        "leader_endpoints": []
        if leader is None
        else [{"name": each.listener, "host": each.host, "port": each.port} for each in leader.endpoints],
    }
    peer = "" if request.client is None else f"{request.client.host}:{request.client.port}"
    response = await execute(context, api_key, version, tree, peer)
    raise_for_code(response.get("error_code", 0), response.get("error_message"))
    [topic] = response["topics"]
    [result] = topic["partitions"]
    code = ErrorCode(result["error_code"])
    if code is not ErrorCode.fenced_leader_epoch:
        raise_for_code(code, f"the quorum rejects the request: {code.name.upper()}")
    return dict(result)


def _view(broker: Broker, *, is_granted: bool) -> GrantView:
    if is_granted:
        return GrantView(granted=True)
    return GrantView(granted=False, leader_epoch=broker.quorum.last_leader_epoch, leader_id=broker.quorum.leader_id)
