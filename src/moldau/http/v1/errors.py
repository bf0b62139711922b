"""Error responses under `/v1`. All of them have the body `{"error": {"code": ..., "message": ...}}`.

The code is the name of Kafka's error code where there is one, and the status is that of `error_statuses.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from moldau.client.errors import ErrorCode, KafkaError
from moldau.controller.messages import error_from_code
from moldau.error_codes import error_code, error_message
from moldau.error_statuses import MISDIRECTED, NOT_FOUND, UNAVAILABLE, error_status
from moldau.errors import MoldauError
from moldau.http.context import HttpContext
from moldau.http.errors import RETRY_HEADERS, HttpError, headers_of

TIMED_OUT, INVALID_FIELD, MULTI_STATUS = 504, 422, 207
FIELDS_MAX = 20
"""The maximum number of invalid fields that an error lists."""

_CODES: Mapping[int, str] = {
    400: "INVALID_REQUEST",
    403: "FORBIDDEN",
    404: "NOT_FOUND",
    405: "METHOD_NOT_ALLOWED",
    409: "CONFLICT",
    413: "REQUEST_TOO_LARGE",
    503: "NOT_AVAILABLE",
}
"""The codes of errors that only the HTTP API has."""
_NOT_FOUND_CODES = (ErrorCode.resource_not_found,)


class InvalidFieldView(BaseModel):
    field: str = Field(examples=["body.records.0.value.base64"])
    message: str


class ErrorView(BaseModel):
    code: str = Field(examples=["UNKNOWN_TOPIC_OR_PARTITION"])
    message: str
    fields: list[InvalidFieldView] | None = Field(None, description="The invalid fields, if the status is 422.")


class ErrorBody(BaseModel):
    error: ErrorView


def _describe(description: str) -> dict[str, Any]:
    return {"model": ErrorBody, "description": description}


COMMON_ERRORS: dict[int | str, dict[str, Any]] = {
    400: _describe("The request is wrong."),
    403: _describe("The cluster forbids the request."),
    404: _describe("The topic, partition, group, consumer or broker does not exist."),
    405: _describe("The path does not support this method."),
    422: _describe("A field is unknown, missing or invalid. The error names it."),
    503: _describe("The node is not ready, or a partition has no leader. Retry-After says when to try again."),
    504: _describe("The request did not complete in time. A change may have been made."),
    507: _describe("The disk of a broker failed or is full."),
}
CONFLICT: dict[int | str, dict[str, Any]] = {409: _describe("The object exists, or is in use.")}
BODY_ERRORS: dict[int | str, dict[str, Any]] = {413: _describe("The body is larger than http.request.max.bytes.")}


def status_of(error: KafkaError) -> int:
    """Returns the HTTP status of an error from `moldau.client`."""
    if error.code is ErrorCode.request_timed_out:
        return TIMED_OUT
    if error.code in _NOT_FOUND_CODES:
        return NOT_FOUND
    domain_error = error_from_code(error.code, error.message)
    if domain_error is None or (error.is_retriable and type(domain_error) is MoldauError):
        return UNAVAILABLE
    status = error_status(domain_error)
    # The client finds leaders and coordinators itself, so this error means that there is none.
    return UNAVAILABLE if status == MISDIRECTED else status


def view_error(error: KafkaError) -> dict[str, str]:
    """Returns the error as it is in a response."""
    name = error.code.name.upper()
    return {"code": name, "message": error.message or name}


def error_response(
    status: int, error: Mapping[str, Any], headers: Mapping[str, str] | None = None, **fields: Any
) -> JSONResponse:
    if status == UNAVAILABLE and headers is None:
        headers = RETRY_HEADERS
    return JSONResponse({"error": error, **fields}, status, headers)


def add_v1_error_handlers(app: FastAPI, context: HttpContext) -> None:
    @app.exception_handler(KafkaError)
    async def on_kafka_error(request: Request, error: KafkaError) -> JSONResponse:
        return error_response(status_of(error), view_error(error))

    @app.exception_handler(MoldauError)
    async def on_domain_error(request: Request, error: MoldauError) -> JSONResponse:
        kafka_error = KafkaError(error_code(error), error_message(error))
        return error_response(status_of(kafka_error), view_error(kafka_error))

    @app.exception_handler(HttpError)
    async def on_http_error(request: Request, error: HttpError) -> JSONResponse:
        code = _CODES.get(error.status, "ERROR")
        return error_response(error.status, {"code": code, "message": error.detail}, error.headers)

    @app.exception_handler(HTTPException)
    async def on_starlette_error(request: Request, error: HTTPException) -> JSONResponse:
        code = _CODES.get(error.status_code, "ERROR")
        return error_response(error.status_code, {"code": code, "message": error.detail}, headers_of(request, error))

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        # The input is left out, because it may be large.
        fields = [
            {"field": _field_name(each["loc"]), "message": each["msg"].removeprefix("Value error, ")}
            for each in error.errors()[:FIELDS_MAX]
        ]
        message = "; ".join(f"{each['field']}: {each['message']}" for each in fields)
        return error_response(INVALID_FIELD, {"code": "INVALID_FIELD", "message": message, "fields": fields})

    @app.exception_handler(Exception)
    async def on_unexpected_error(request: Request, error: Exception) -> JSONResponse:
        # uvicorn's connection logs the exception.
        context.unexpected_errors += 1
        message = "the request failed with an unexpected error"
        return error_response(500, {"code": "UNKNOWN_SERVER_ERROR", "message": message})


def _field_name(location: Sequence[object]) -> str:
    # The names of unknown fields come from the client, and may not be valid Unicode. Tags of payloads start with `~`.
    name = ".".join(str(each) for each in location if not str(each).startswith("~"))
    return name.encode(errors="replace").decode()
