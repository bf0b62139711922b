"""JSON request bodies. A body is JSON whatever its Content-Type says, because clients send wrong ones."""

import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect

from moldau.http.context import HttpContext
from moldau.http.errors import HttpError

RECEIVED_BYTES_MAX = 64 * 1024 * 1024
"""The maximum size of the bodies of all requests in progress, unless a single body may be larger than half of it."""
JSON_VALUES_MAX = 500_000
"""The maximum number of JSON values in a body. Parsing blocks the event loop, for seconds if there are millions."""
ERRORS_MAX = 20
"""The maximum number of invalid fields that a response names."""

_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SEPARATORS = ",[{"

ModelT = TypeVar("ModelT", bound="RequestBody")


class RequestBody(BaseModel):
    """Base of request bodies. Unknown fields and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


def get_context(request: Request) -> HttpContext:
    context: HttpContext = request.app.state.context
    return context


Context = Annotated[HttpContext, Depends(get_context)]


async def read_body(request: Request) -> bytes:
    """Returns the body, which counts as received until `release_body`. Raises HttpError with status 413 if it is too
    large, and 503 if the bodies of all requests in progress have too many bytes."""
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
                raise HttpError(503, "other requests in progress have too many bytes")
    except BaseException as failure:
        release_body(context, body)
        if isinstance(failure, ClientDisconnect):
            # The client does not receive this response.
            raise HttpError(400, "the client disconnected before the end of the body") from None
        raise
    return bytes(body)


def release_body(context: HttpContext, body: bytes | bytearray) -> None:
    context.received_bytes -= len(body)


def json_body(model: type[ModelT]) -> Callable[[Request], AsyncIterator[ModelT]]:
    """Returns a dependency that reads and validates the body. `body_schema` describes the body in OpenAPI."""

    async def parse(request: Request) -> AsyncIterator[ModelT]:
        data = await read_body(request)
        try:
            yield _validate(model, data)
        finally:
            release_body(get_context(request), data)

    return parse


def _validate(model: type[ModelT], data: bytes) -> ModelT:
    try:
        text = data.decode("utf-8-sig")
        _check_value_count(text)
        tree = json.loads(text, parse_constant=_reject_constant)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}") from None
    known = [field.alias or name for name, field in model.model_fields.items()]
    if isinstance(tree, dict) and len(tree) > len(known) + ERRORS_MAX:
        # Pydantic would report all unknown fields, which can be very many.
        unknown = [name for name in tree if name not in known][:ERRORS_MAX]
        tree = {name: tree[name] for name in [*known, *unknown] if name in tree}
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False)[:ERRORS_MAX]
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in errors]) from None


def _check_value_count(text: str) -> None:
    """Raises HttpError with status 413 if the text has too many JSON values. Texts in strings are one value each."""
    if len(text) <= JSON_VALUES_MAX or sum(map(text.count, _SEPARATORS)) <= JSON_VALUES_MAX:
        return
    if sum(map(_STRING.sub("", text).count, _SEPARATORS)) > JSON_VALUES_MAX:
        raise HttpError(413, f"the body has more than {JSON_VALUES_MAX} JSON values")


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def body_schema(model: type[RequestBody], example: dict[str, Any]) -> dict[str, Any]:
    """Returns `openapi_extra` of a route whose body comes from `json_body`."""
    schema = {**model.model_json_schema(), "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
