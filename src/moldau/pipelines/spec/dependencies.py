"""Which sources and views a view is made of. Pure."""

import re

from moldau.pipelines.definition import PipelineDefinition, Source, View
from moldau.pipelines.spec.parameters import parameters_of


def dependencies_of(pipeline: PipelineDefinition, name: str) -> list[Source | View]:
    """What must be there for the view or source of this name, itself last, each after what it needs."""
    everything: list[Source | View] = [*pipeline.sources, *pipeline.views]
    index = next(i for i, each in enumerate(everything) if each.name == name)
    wanted = {name}
    for position in range(index, -1, -1):
        each = everything[position]
        if each.name in wanted and isinstance(each, View):
            wanted.update(_referenced_names(each, [other.name for other in everything[:position]]))
    return [each for each in everything[: index + 1] if each.name in wanted]


def sources_of(pipeline: PipelineDefinition, name: str) -> list[Source]:
    return [each for each in dependencies_of(pipeline, name) if isinstance(each, Source)]


def _referenced_names(view: View, before: list[str]) -> list[str]:
    if view.transform is not None:
        return [name for name in parameters_of(view.transform) if name in before]
    words = {word.lower() for word in re.findall(r"\w+", view.sql or "")}
    # A word may be a column's name as well. Then a view is made that nobody reads, which costs next to nothing.
    return [name for name in before if name.lower() in words]
