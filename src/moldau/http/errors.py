"""Error responses of the HTTP API. Every error body has the field `detail`, as FastAPI's own errors have."""

from collections.abc import Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from moldau.error_codes import error_message
from moldau.error_statuses import MISDIRECTED, UNAVAILABLE, error_status
from moldau.errors import FencedLeaderEpochError, MoldauError, NotLeaderOrFollowerError
from moldau.http.context import HttpContext
from moldau.http.health import RETRY_AFTER_S

RETRY_HEADERS = {"retry-after": str(RETRY_AFTER_S)}
DETAIL_LENGTH_MAX = 1_000
"""Errors may contain names from the request, which have any length."""
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
METHOD_NOT_ALLOWED = 405


class HttpError(Exception):
    """An error that exists only in the HTTP API."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.headers = RETRY_HEADERS if headers is None and status == UNAVAILABLE else headers


def add_error_handlers(app: FastAPI, context: HttpContext) -> None:
    @app.exception_handler(HttpError)
    async def on_http_error(request: Request, error: HttpError) -> JSONResponse:
        return JSONResponse({"detail": error.detail}, error.status, error.headers)

    @app.exception_handler(MoldauError)
    async def on_domain_error(request: Request, error: MoldauError) -> JSONResponse:
        status = error_status(error)
        detail = (error_message(error) or type(error).__name__)[:DETAIL_LENGTH_MAX]
        if status == MISDIRECTED:
            leader_id = error.leader_id if isinstance(error, NotLeaderOrFollowerError | FencedLeaderEpochError) else -1
            if leader_id < 0 or leader_id == context.broker.broker_id:
                return JSONResponse({"detail": detail}, UNAVAILABLE, RETRY_HEADERS)
            detail = not_leader_detail(leader_id)
        return JSONResponse({"detail": detail}, status, RETRY_HEADERS if status == UNAVAILABLE else None)

    @app.exception_handler(HTTPException)
    async def on_starlette_error(request: Request, error: HTTPException) -> JSONResponse:
        return JSONResponse({"detail": error.detail}, error.status_code, headers_of(request, error))

    @app.exception_handler(RequestValidationError)
    async def on_validation_error(request: Request, error: RequestValidationError) -> JSONResponse:
        # The input is left out, because it may be large and may not be JSON (NaN, lone surrogates).
        found = [{"type": each["type"], "loc": each["loc"], "msg": each["msg"]} for each in error.errors()]
        return JSONResponse({"detail": found}, 422)

    @app.exception_handler(Exception)
    async def on_unexpected_error(request: Request, error: Exception) -> JSONResponse:
        # uvicorn's connection logs the exception.
        context.unexpected_errors += 1
        return JSONResponse({"detail": "the request failed with an unexpected error"}, 500)


def headers_of(request: Request, error: HTTPException) -> Mapping[str, str] | None:
    """Returns the headers of an error of the router, which names the methods of only one route with this path."""
    if error.status_code != METHOD_NOT_ALLOWED:
        return error.headers
    routes = request.app.router.routes
    allowed = [
        method
        for method in METHODS
        if any(route.matches({**request.scope, "method": method})[0] is Match.FULL for route in routes)
    ]
    return {"allow": ", ".join(allowed)}


def not_leader_detail(leader_id: int) -> str:
    return f"leader is {leader_id}, can't accept"
