"""`/v1/reassignments`: moves partitions to other brokers."""

from typing import Annotated

from fastapi import APIRouter, Depends, Response
from fastapi.responses import JSONResponse
from pydantic import Field

from moldau.client.errors import KafkaError
from moldau.client.record import TopicPartition
from moldau.http.body import json_body
from moldau.http.v1.errors import BODY_ERRORS, MULTI_STATUS, ErrorView, error_response, status_of, view_error
from moldau.http.v1.fields import Body, BrokerId, PartitionIndex, TopicName, View, request_body
from moldau.http.v1.state import State

ACCEPTED = 202

router = APIRouter(prefix="/reassignments", tags=["reassignments"])


class ReassignmentBody(Body):
    topic: TopicName
    partition: PartitionIndex
    replicas: Annotated[list[BrokerId], Field(min_length=1, max_length=1_000, fail_fast=True)] | None
    """The new replicas, the preferred leader first; null cancels the reassignment in progress."""


class AlterReassignmentsBody(Body):
    partitions: list[ReassignmentBody] = Field(min_length=1, max_length=10_000, fail_fast=True)


class ReassignmentResultView(View):
    topic: str
    partition: int
    error: ErrorView | None = None


class ReassignmentResults(View):
    partitions: list[ReassignmentResultView]


class ReassignmentView(View):
    topic: str
    partition: int
    replicas: list[int]
    adding_replicas: list[int]
    removing_replicas: list[int]


class ReassignmentList(View):
    reassignments: list[ReassignmentView]


@router.get("", summary="List reassignments in progress")
async def list_reassignments(state: State) -> ReassignmentList:
    found = await (await state.client.admin()).list_reassignments()
    return ReassignmentList(
        reassignments=[
            ReassignmentView(
                topic=partition.topic,
                partition=partition.partition,
                replicas=list(each.replicas),
                adding_replicas=list(each.adding),
                removing_replicas=list(each.removing),
            )
            for partition, each in sorted(found.items())
        ]
    )


@router.post(
    "",
    status_code=ACCEPTED,
    summary="Start or cancel reassignments",
    response_model=ReassignmentResults,
    response_model_exclude_unset=True,
    responses={MULTI_STATUS: {"model": ReassignmentResults, "description": "Some have an error."}, **BODY_ERRORS},
    openapi_extra=request_body(
        AlterReassignmentsBody, {"partitions": [{"topic": "orders", "partition": 0, "replicas": [2, 3]}]}
    ),
)
async def alter_reassignments(
    state: State, body: Annotated[AlterReassignmentsBody, Depends(json_body(AlterReassignmentsBody))]
) -> Response:
    """Starts the reassignments. The status is 202 if all were started, 207 if some were, and an error if none was."""
    wanted = {TopicPartition(each.topic, each.partition): each.replicas for each in body.partitions}
    results = await (await state.client.admin()).alter_reassignments(wanted)
    errors = [each for each in results.values() if isinstance(each, KafkaError)]
    views = [
        {"topic": partition.topic, "partition": partition.partition}
        | ({"error": view_error(result)} if isinstance(result, KafkaError) else {})
        for partition, result in results.items()
    ]
    if errors and len(errors) == len(results):
        return error_response(status_of(errors[0]), view_error(errors[0]), partitions=views)
    return JSONResponse({"partitions": views}, MULTI_STATUS if errors else ACCEPTED)
