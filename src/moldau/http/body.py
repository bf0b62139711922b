"""JSON request bodies. A body is JSON whatever its Content-Type says, because clients send wrong ones."""

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect

from moldau.http.context import HttpContext
from moldau.http.errors import HttpError

RECEIVED_BYTES_MAX = 64 * 1024 * 1024
"""The maximum size of all bodies that are being received, unless a single body may be larger than half of it."""

ModelT = TypeVar("ModelT", bound="RequestBody")


class RequestBody(BaseModel):
    """Base of request bodies. Unknown fields and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


def get_context(request: Request) -> HttpContext:
    context: HttpContext = request.app.state.context
    return context


Context = Annotated[HttpContext, Depends(get_context)]


async def read_body(request: Request) -> bytes:
    """Returns the body. Raises HttpError with status 413 if it is too large, and 503 if too many bytes of bodies are
    being received."""
    context = get_context(request)
    limit = context.request_bytes_max
    error = HttpError(413, f"the body is larger than {limit} bytes (http.request.max.bytes)")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise error
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            context.received_bytes += len(chunk)
            if len(body) > limit:
                raise error
            if context.received_bytes > max(RECEIVED_BYTES_MAX, 2 * limit):
                raise HttpError(503, "too many bytes of other requests are being received")
    except ClientDisconnect:
        # Nobody receives this response.
        raise HttpError(400, "the client disconnected before the end of the body") from None
    finally:
        context.received_bytes -= len(body)
    return bytes(body)


def json_body(model: type[ModelT]) -> Callable[[Request], Coroutine[Any, Any, ModelT]]:
    """Returns a dependency that reads and validates the body. `body_schema` describes the body in OpenAPI."""

    async def parse(request: Request) -> ModelT:
        data = await read_body(request)
        try:
            tree = json.loads(data, parse_constant=_reject_constant)
        except (ValueError, RecursionError) as error:
            raise HttpError(400, f"the body is not JSON: {error}") from None
        try:
            return model.model_validate(tree)
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False)
            raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in errors]) from None

    return parse


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def body_schema(model: type[RequestBody], example: dict[str, Any]) -> dict[str, Any]:
    """Returns `openapi_extra` of a route whose body comes from `json_body`."""
    schema = {**model.model_json_schema(), "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
