"""Requests for health and metrics on connections that the HTTP API has taken over. The front connection responds to the
others."""

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from moldau.http.body import Context
from moldau.http.errors import RETRY_HEADERS
from moldau.http.health import health_response
from moldau.metrics.exposition import CONTENT_TYPE

router = APIRouter(tags=["health"])
UNREADY: dict[int | str, dict[str, Any]] = {503: {"description": "Clients cannot use this node now."}}


def _response(path: str, context: Context) -> JSONResponse:
    status, body = health_response(path, context.broker)
    return JSONResponse(body, status, RETRY_HEADERS if status == 503 else None)


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(context: Context) -> Response:
    """Returns the metrics of this node for Prometheus."""
    return Response(b"".join(await context.render_metrics()), media_type=CONTENT_TYPE)


@router.get("/healthcheck")
async def healthcheck(context: Context) -> JSONResponse:
    return _response("/healthcheck", context)


@router.get("/livez")
async def livez(context: Context) -> JSONResponse:
    return _response("/livez", context)


@router.get("/readyz", responses=UNREADY)
async def readyz(context: Context) -> JSONResponse:
    return _response("/readyz", context)


@router.get("/healthz", responses=UNREADY)
async def healthz(context: Context) -> JSONResponse:
    return _response("/healthz", context)
