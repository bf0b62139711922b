"""Pipelines on Spark: topics in, a transformation in SQL or PySpark, topics and tables out.

    from moldau.pipelines import Pipeline

What is not used is not loaded: a pipeline can be read and checked for mistakes where Spark is not installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.pipelines.definition import PipelineError
    from moldau.pipelines.form.loading import load
    from moldau.pipelines.form.python_form import Pipeline

__all__ = ["Pipeline", "PipelineError", "load"]

_HOMES = {"Pipeline": "form.python_form", "PipelineError": "definition", "load": "form.loading"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
