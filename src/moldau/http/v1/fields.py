"""Types of parameters and of the fields of bodies under `/v1`."""

from typing import Annotated, Any, Literal

from fastapi import Path, Query
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from moldau.http.body import RequestBody
from moldau.http.simple_api.fields import Text
from moldau.settings.registry import INT_MAX, LONG_MAX

TOPIC_PATTERN = r"^[a-zA-Z0-9._\-]+$"
WAIT_MS_MAX = 30_000

TopicName = Annotated[str, Field(min_length=1, max_length=249, pattern=TOPIC_PATTERN, examples=["orders"])]
TopicPath = Annotated[str, Path(min_length=1, max_length=249, pattern=TOPIC_PATTERN, examples=["orders"])]
GroupPath = Annotated[str, Path(min_length=1, max_length=255, examples=["billing"])]
PartitionPath = Annotated[int, Path(ge=0, le=INT_MAX, examples=[0])]
BrokerPath = Annotated[int, Path(ge=0, le=INT_MAX, examples=[1])]
PartitionIndex = Annotated[int, Field(ge=0, le=INT_MAX)]
BrokerId = Annotated[int, Field(ge=0, le=INT_MAX)]
OffsetNumber = Annotated[int, Field(ge=0, le=LONG_MAX)]
ConfigName = Annotated[Text, Field(min_length=1, max_length=255)]
ConfigValue = Annotated[Text, Field(max_length=8_000)]
IsolationLevel = Literal["read_uncommitted", "read_committed"]
WaitMs = Annotated[
    int, Query(ge=0, le=WAIT_MS_MAX, description="How long to wait for the first record, in milliseconds.")
]
Format = Annotated[
    Literal["json", "text", "base64"],
    Query(
        description="How values are encoded. Keys and headers are text with `json`, and the same as values otherwise. "
        "Bytes that are not valid in the format are in base64."
    ),
]


def _check_offset(value: str) -> str:
    if value.isdecimal() and int(value) > LONG_MAX:
        raise ValueError(f"an offset is at most {LONG_MAX}")
    return value


CONFIGS_MAX = 100


def _check_config_count(value: Any) -> Any:
    # Pydantic would check the count only after all items.
    if isinstance(value, dict) and len(value) > CONFIGS_MAX:
        raise ValueError(f"at most {CONFIGS_MAX} configs can be given")
    return value


ConfigCount = BeforeValidator(_check_config_count)

OffsetText = Annotated[
    str,
    Query(pattern="^(earliest|latest|[0-9]{1,19})$", description="`earliest`, `latest` or an offset."),
    AfterValidator(_check_offset),
]


class Body(RequestBody):
    """A request body. The docstrings of its fields are in the OpenAPI document."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class View(BaseModel):
    """A response body, or a part of one."""

    model_config = ConfigDict(use_attribute_docstrings=True)


def request_body(model: type[Body], example: dict[str, Any]) -> dict[str, Any]:
    """Returns `openapi_extra` of a route whose body comes from `json_body`. `v1/app.py` adds its schema."""
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema, "example": example}}}}
