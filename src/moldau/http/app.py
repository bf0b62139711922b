"""The FastAPI application of a node."""

import asyncio
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fastapi import FastAPI
from starlette.routing import Mount

from moldau import __version__
from moldau.http import health_routes
from moldau.http.context import HttpContext
from moldau.http.errors import add_error_handlers
from moldau.http.simple_api import quorum, records, topics
from moldau.http.v1.app import create_v1_app


def create_app(context: HttpContext) -> FastAPI:
    # The pages /docs and /redoc would load their scripts from another host.
    app = FastAPI(title="Moldau", version=__version__, openapi_url=None, docs_url=None, redoc_url=None)
    app.state.context = context
    add_error_handlers(app, context)
    _add_openapi(app)
    app.include_router(health_routes.router)
    app.include_router(topics.router)
    app.include_router(records.router)
    app.include_router(quorum.router)
    app.router.routes.append(_mount("/v1", create_v1_app(context)))
    return app


def _mount(path: str, app: FastAPI) -> Mount:
    mount = Mount(path, app=app)
    # Also match paths with line ends, so that all errors of the mounted application have its format.
    mount.path_regex = re.compile(mount.path_regex.pattern, re.DOTALL)
    return mount


def _add_openapi(app: FastAPI) -> None:
    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            # The first call builds the document, which takes too long for the event loop.
            executor = ThreadPoolExecutor(1, "moldau openapi")
            try:
                return await asyncio.get_running_loop().run_in_executor(executor, app.openapi)
            finally:
                executor.shutdown(wait=False)
        return app.openapi()
