"""Dependencies between the views and sources of a pipeline. No I/O."""

import inspect
import re
from collections.abc import Callable
from typing import Any

from moldau.pipelines.definition import PipelineDefinition, Source, View


def dependencies_of(pipeline: PipelineDefinition, name: str) -> list[Source | View]:
    """Returns a view or source and all views and sources that it depends on, in topological order."""
    everything: list[Source | View] = [*pipeline.sources, *pipeline.views]
    index = next(i for i, each in enumerate(everything) if each.name == name)
    required = {name}
    for position in range(index, -1, -1):
        each = everything[position]
        if each.name in required and isinstance(each, View):
            required.update(_referenced_names(each, [other.name for other in everything[:position]]))
    return [each for each in everything[: index + 1] if each.name in required]


def sources_of(pipeline: PipelineDefinition, name: str) -> list[Source]:
    return [each for each in dependencies_of(pipeline, name) if isinstance(each, Source)]


def _referenced_names(view: View, earlier: list[str]) -> list[str]:
    if view.transform is not None:
        return [name for name in parameters_of(view.transform) if name in earlier]
    words = {word.lower() for word in re.findall(r"\w+", view.sql or "")}
    # A word that equals the name of a view may be a column. Then the list has an unused view, which costs little.
    return [name for name in earlier if name.lower() in words]


def parameters_of(function: Callable[..., Any]) -> list[str]:
    return [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
        and each.default is each.empty
    ]
