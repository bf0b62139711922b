"""Pipelines on Spark, which read topics, transform them in SQL or PySpark, and write topics and tables.

    from moldau.pipelines import Pipeline

Modules are loaded on demand, so that a pipeline file can be validated without Spark.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.pipelines.definition import PipelineError
    from moldau.pipelines.spec.loader import load
    from moldau.pipelines.spec.python_file import Pipeline

__all__ = ["Pipeline", "PipelineError", "load"]

_MODULES = {"Pipeline": "spec.python_file", "PipelineError": "definition", "load": "spec.loader"}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
