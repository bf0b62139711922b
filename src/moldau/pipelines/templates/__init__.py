"""Pipeline templates, and the data that is generated for them."""

from importlib.resources import files

TEMPLATES = {
    "orders-revenue": "orders to revenue per minute and product, into a topic and a table",
    "compacted-table": "a topic as a table: one row per key, deleted by a tombstone",
    "lag-history": "lag and rates of the cluster's metrics topic, into a table for `moldau pipeline chart`",
    "blank": "a minimal pipeline: one topic in, one topic out",
}


def template(which: str, name: str | None = None, *, python: bool = False) -> str:
    """Returns the text of a template with the pipeline's name."""
    file = which.replace("-", "_") + (".py.txt" if python else ".yaml")
    text = files(__name__).joinpath(file).read_text()
    # Replace all occurrences, because a template contains its own name only as the pipeline's name.
    return text if name is None else text.replace(which, name)
