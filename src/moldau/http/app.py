"""The FastAPI application of a node."""

from fastapi import FastAPI

from moldau import __version__
from moldau.http import health_routes
from moldau.http.context import HttpContext
from moldau.http.errors import add_error_handlers
from moldau.http.simple_api import topics


def create_app(context: HttpContext) -> FastAPI:
    # The pages /docs and /redoc would load their scripts from another host.
    app = FastAPI(title="Moldau", version=__version__, docs_url=None, redoc_url=None)
    app.state.context = context
    add_error_handlers(app, context)
    app.include_router(health_routes.router)
    app.include_router(topics.router)
    return app
