"""The pipelines that come with Moldau, as files to begin with."""

from importlib.resources import files

TEMPLATES = {
    "orders-revenue": "orders to revenue per minute and product, into a topic and a table",
    "compacted-table": "a topic as a table: one row per key, gone when the key is deleted",
    "blank": "the least there is: one topic in, one topic out",
}


def template(which: str, name: str | None = None, *, python: bool = False) -> str:
    """The text of a template, as a pipeline of this name; KeyError where there is no such template."""
    if which not in TEMPLATES:
        raise KeyError(which)
    file = which.replace("-", "_") + (".py.txt" if python else ".yaml")
    text = files(__name__).joinpath(file).read_text()
    # A template says its own name where a name belongs, and nowhere else.
    return text if name is None else text.replace(which, name)
