"""JSON request bodies. A body is JSON whatever its Content-Type says, because clients send wrong ones."""

import gc
import json
import re
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, TypeVar, get_args

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from moldau.http.context import HttpContext
from moldau.http.errors import HttpError

RECEIVED_BYTES_MAX = 64 * 1024 * 1024
"""The maximum size of the bodies of all requests in progress, unless a single body may be larger than half of it."""
JSON_VALUES_MAX = 250_000
"""The maximum number of JSON values in a body. Parsing blocks the event loop, for seconds if there are millions."""
ERRORS_MAX = 20
"""The maximum number of invalid fields that a response names."""
ITEMS_AT_ONCE = 20
"""How many items of a list are validated at once. A request for one record is then as fast as it can be."""

_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SEPARATORS = ",[{"
_BYTE_ORDER_MARK = "\ufeff"
_RECEIVED_BODY = "moldau.received_body"
"""The key of the ReceivedBody in the scope of a request."""

ModelT = TypeVar("ModelT", bound="RequestBody")
T = TypeVar("T")


class RequestBody(BaseModel):
    """Base of request bodies and of objects in them. Unknown fields and wrong types are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _leave_out_unknown_fields(cls, tree: Any) -> Any:
        """Leaves out unknown fields if there are very many. Pydantic would describe each of them."""
        if type(tree) is not dict or len(tree) <= len(cls.model_fields) + ERRORS_MAX:
            return tree
        known = [field.alias or name for name, field in cls.model_fields.items()]
        unknown = [name for name in tree if name not in known][:ERRORS_MAX]
        return {name: tree[name] for name in [*known, *unknown] if name in tree}


def context_of(request: Request) -> HttpContext:
    context: HttpContext = request.app.state.context
    return context


async def get_context(request: Request) -> HttpContext:
    """The dependency. FastAPI would run a plain function in a thread."""
    return context_of(request)


Context = Annotated[HttpContext, Depends(get_context)]


class ReceivedBody:
    """Counts the bytes of a request's body until the request has ended."""

    def __init__(self, context: HttpContext) -> None:
        self._context = context
        self._bytes = 0

    def add(self, size: int) -> None:
        self._bytes += size
        self._context.received_bytes += size

    def release(self) -> None:
        self._context.received_bytes -= self._bytes
        self._bytes = 0


def counting_bodies(app: ASGIApp, context: HttpContext) -> ASGIApp:
    """Returns an application that releases the bytes of each body when its request has ended."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        body = scope[_RECEIVED_BODY] = ReceivedBody(context)
        try:
            await app(scope, receive, send)
        finally:
            body.release()

    return run


async def read_body(request: Request) -> bytes:
    """Returns the body. Raises HttpError with status 413 if it is too large, and 503 if the bodies of all requests in
    progress have too many bytes."""
    context = context_of(request)
    received: ReceivedBody = request.scope[_RECEIVED_BODY]
    limit = context.request_bytes_max
    error = HttpError(413, f"the body is larger than {limit} bytes (http.request.max.bytes)")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise error
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            received.add(len(chunk))
            if len(body) > limit:
                raise error
            if context.received_bytes > max(RECEIVED_BYTES_MAX, 2 * limit):
                raise HttpError(503, "other requests in progress have too many bytes")
    except ClientDisconnect:
        # The client does not receive this response.
        raise HttpError(400, "the client disconnected before the end of the body") from None
    return bytes(body)


def json_body(model: type[ModelT], items: str | None = None) -> Callable[[Request], Awaitable[ModelT]]:
    """Returns a dependency that reads and validates the body. `body_schema` describes the body in OpenAPI.

    `items` is a field with a list that may be long. Its items are validated one by one, up to the first invalid one,
    and the node does other work in between. Other long lists need `fail_fast`, because thousands of errors take seconds
    to describe.
    """
    item_type = None if items is None else TypeAdapter[Any](get_args(model.model_fields[items].annotation)[0])

    async def parse(request: Request) -> ModelT:
        data = await read_body(request)
        run = context_of(request).broker.cpu_budget.run
        tree = await run(partial(_decode, data))
        values = tree.get(items) if item_type is not None and isinstance(tree, dict) else None
        if items is None or item_type is None or type(values) is not list or len(values) <= ITEMS_AT_ONCE:
            return await run(partial(_validate, model.model_validate, tree, "body"))
        _check_item_count(model, items, len(values))
        body = _validate(model.model_validate, {**tree, items: values[:1]}, "body")
        found = [
            await run(partial(_validate, item_type.validate_python, value, "body", items, index))
            for index, value in enumerate(values)
        ]
        setattr(body, items, found)
        return body

    return parse


def _decode(data: bytes) -> Any:
    """Raises HttpError if the data is not JSON, or has too many values."""
    # The garbage collector would scan the growing tree many times, and JSON has no cycles.
    collects_garbage = gc.isenabled()
    gc.disable()
    try:
        text = data.decode().removeprefix(_BYTE_ORDER_MARK)
        _check_value_count(text)
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}") from None
    finally:
        if collects_garbage:
            gc.enable()


def _validate(validate: Callable[[Any], T], tree: Any, *location: str | int) -> T:
    """Raises RequestValidationError, with `location` before the names of invalid fields."""
    try:
        return validate(tree)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)[:ERRORS_MAX]
        raise RequestValidationError([{**each, "loc": (*location, *each["loc"])} for each in errors]) from None


def _check_item_count(model: type[RequestBody], field: str, count: int) -> None:
    for each in model.model_fields[field].metadata:
        limit = getattr(each, "max_length", None)
        if limit is not None and count > limit:
            message = f"List should have at most {limit} items, not {count}"
            raise RequestValidationError([{"type": "too_long", "loc": ("body", field), "msg": message}])


def _check_value_count(text: str) -> None:
    """Raises HttpError with status 413 if the text has too many JSON values. Texts in strings are one value each."""
    if len(text) <= JSON_VALUES_MAX or sum(map(text.count, _SEPARATORS)) <= JSON_VALUES_MAX:
        return
    if sum(map(_STRING.sub("", text).count, _SEPARATORS)) > JSON_VALUES_MAX:
        raise HttpError(413, f"the body has more than {JSON_VALUES_MAX} JSON values")


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)


def body_schema(model: type[RequestBody], example: dict[str, Any]) -> dict[str, Any]:
    """Returns `openapi_extra` of a route whose body comes from `json_body`."""
    schema = {**model.model_json_schema(), "example": example}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
