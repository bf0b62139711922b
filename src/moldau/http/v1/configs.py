"""`/v1/topics/{topic}/configs` and `/v1/brokers/{broker_id}/configs`: returns and changes configs."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response
from pydantic import Field

from moldau.client.admin.requester import single_result
from moldau.client.admin.types import ConfigChange, ConfigEntry, ConfigResource, ConfigSource, Operation, ResourceType
from moldau.client.errors import ErrorCode, KafkaError
from moldau.http.body import json_body
from moldau.http.v1.errors import BODY_ERRORS
from moldau.http.v1.fields import (
    CONFIGS_MAX,
    Body,
    BrokerPath,
    ConfigCount,
    ConfigName,
    ConfigValue,
    TopicPath,
    View,
    request_body,
)
from moldau.http.v1.state import State, V1State

router = APIRouter(tags=["configs"])
EXAMPLE = {"configs": {"retention.ms": "60000", "max.message.bytes": None}}


class AlterConfigsBody(Body):
    configs: Annotated[dict[ConfigName, ConfigValue | None], ConfigCount] = Field(min_length=1, max_length=CONFIGS_MAX)
    """The new values; null resets a config to its default. Other configs stay as they are."""
    validate_only: bool = False


class ConfigView(View):
    name: str
    value: str | None
    """The value; null if it is unset or sensitive."""
    source: str
    is_default: bool
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None


class ConfigList(View):
    configs: list[ConfigView]


OnlyChanged = Annotated[bool, Query(description="Leave out configs that have their default.")]


@router.get("/topics/{topic}/configs", summary="List the configs of a topic")
async def topic_configs(state: State, topic: TopicPath, only_changed: OnlyChanged = False) -> ConfigList:
    return await _describe(state, ConfigResource(ResourceType.TOPIC, topic), only_changed)


@router.patch(
    "/topics/{topic}/configs",
    status_code=204,
    summary="Change configs of a topic",
    responses=BODY_ERRORS,
    openapi_extra=request_body(AlterConfigsBody, EXAMPLE),
)
async def alter_topic_configs(
    state: State, topic: TopicPath, body: Annotated[AlterConfigsBody, Depends(json_body(AlterConfigsBody))]
) -> Response:
    return await _alter(state, ConfigResource(ResourceType.TOPIC, topic), body)


@router.get("/brokers/{broker_id}/configs", summary="List the configs of a broker")
async def broker_configs(state: State, broker_id: BrokerPath, only_changed: OnlyChanged = False) -> ConfigList:
    return await _describe(state, await _broker(state, broker_id), only_changed)


@router.patch(
    "/brokers/{broker_id}/configs",
    status_code=204,
    summary="Change configs of a broker",
    responses=BODY_ERRORS,
    openapi_extra=request_body(AlterConfigsBody, {"configs": {"log.retention.ms": "3600000"}}),
)
async def alter_broker_configs(
    state: State, broker_id: BrokerPath, body: Annotated[AlterConfigsBody, Depends(json_body(AlterConfigsBody))]
) -> Response:
    return await _alter(state, await _broker(state, broker_id), body)


async def _broker(state: V1State, broker_id: int) -> ConfigResource:
    description = await (await state.client.admin()).describe_cluster(fenced_too=True)
    if broker_id in [each.node_id for each in description.brokers]:
        return ConfigResource(ResourceType.BROKER, str(broker_id))
    if broker_id in [each.node_id for each in description.fenced]:
        raise KafkaError(ErrorCode.broker_not_available, f"broker {broker_id} is fenced")
    raise KafkaError(ErrorCode.broker_id_not_registered, f"broker {broker_id} does not exist")


async def _describe(state: V1State, resource: ConfigResource, only_changed: bool) -> ConfigList:
    admin = await state.client.admin()
    entries = single_result(await admin.describe_configs([resource], documentation=True))
    return ConfigList(configs=[_view(each) for each in entries.values() if not (only_changed and each.is_default)])


async def _alter(state: V1State, resource: ConfigResource, body: AlterConfigsBody) -> Response:
    changes = [
        ConfigChange(name, value, Operation.DELETE if value is None else Operation.SET)
        for name, value in body.configs.items()
    ]
    admin = await state.client.admin()
    single_result(await admin.alter_configs({resource: changes}, validate_only=body.validate_only))
    return Response(status_code=204)


def _view(entry: ConfigEntry) -> ConfigView:
    sources = {each.value: each.name for each in ConfigSource}
    return ConfigView(
        name=entry.name,
        value=entry.value,
        source=sources.get(entry.source, ConfigSource.UNKNOWN.name),
        is_default=entry.is_default,
        is_read_only=entry.is_read_only,
        is_sensitive=entry.is_sensitive,
        documentation=entry.documentation,
    )
