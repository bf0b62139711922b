"""The FastAPI application under `/v1`. It has its own errors and OpenAPI document (`/v1/openapi.json`)."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic.json_schema import models_json_schema

from moldau import __version__
from moldau.http.context import HttpContext
from moldau.http.simple_api.leadership import require_ready
from moldau.http.v1 import cluster, configs, consumers, groups, pipelines, reassignments, records, stream, topics
from moldau.http.v1.errors import COMMON_ERRORS, add_v1_error_handlers
from moldau.http.v1.fields import Body
from moldau.http.v1.state import V1State

BODIES: tuple[type[Body], ...] = (
    topics.CreateTopicBody,
    topics.CreatePartitionsBody,
    records.ProduceRecordsBody,
    groups.ResetOffsetsBody,
    consumers.CreateConsumerBody,
    consumers.CommitBody,
    configs.AlterConfigsBody,
    reassignments.AlterReassignmentsBody,
)


class V1App(FastAPI):
    def openapi(self) -> dict[str, Any]:
        """Adds the schemas of the request bodies, which FastAPI does not read itself."""
        if self.openapi_schema is None:
            document = super().openapi()
            _, schemas = models_json_schema(
                [(each, "validation") for each in BODIES], ref_template="#/components/schemas/{model}"
            )
            components = document.setdefault("components", {}).setdefault("schemas", {})
            components.update(schemas["$defs"])
        assert self.openapi_schema is not None
        return self.openapi_schema


def create_v1_app(context: HttpContext) -> FastAPI:
    # The pages /docs and /redoc would load their scripts from another host.
    app = V1App(
        title="Moldau",
        summary="Topics, records, groups and the cluster over HTTP.",
        version=__version__,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        servers=[{"url": "/v1"}],
        dependencies=[Depends(reject_unknown_parameters), Depends(require_ready)],
        responses=COMMON_ERRORS,
    )
    app.state.context = context
    app.state.v1 = V1State.create(context)
    add_v1_error_handlers(app, context)
    for module in (topics, records, stream, consumers, groups, cluster, configs, reassignments, pipelines):
        app.include_router(module.router)
    _add_openapi(app)
    return app


async def reject_unknown_parameters(request: Request) -> None:
    """Raises RequestValidationError for query parameters that the route does not have, which are probably mistyped."""
    route = request.scope["route"]
    known = {each.alias for each in route.dependant.query_params}
    unknown = [name for name in request.query_params if name not in known]
    if unknown:
        raise RequestValidationError(
            [{"type": "extra_forbidden", "loc": ("query", each), "msg": "unknown parameter"} for each in unknown]
        )


def _add_openapi(app: FastAPI) -> None:
    @app.get("/openapi.json", include_in_schema=False, dependencies=[])
    async def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            # The first call builds the document, which takes too long for the event loop.
            executor = ThreadPoolExecutor(1, "moldau openapi")
            try:
                return await asyncio.get_running_loop().run_in_executor(executor, app.openapi)
            finally:
                executor.shutdown(wait=False)
        return app.openapi()
