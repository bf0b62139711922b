"""Whose a directory of Parquet is. Spark's file sink knows the batches in it by their numbers alone: a query that is
not the one that wrote them would be told that its first batches are there already, and they would be lost."""

import json

from moldau.pipelines.definition import PipelineError
from moldau.pipelines.planner.checkpoint_identity import FileStore, QueryIdentity

FILE = "_moldau_owner.json"
"""Names that begin so are no rows to those who read the directory."""


def check_owner(files: FileStore, directory: str, query: str, known: QueryIdentity | None) -> None:
    """Raises PipelineError where another query than the one with this checkpoint wrote there. None: it has none yet."""
    owner = files.read(f"{directory}/{FILE}")
    if owner is None and not files.exists(f"{directory}/_spark_metadata"):
        return
    if known is None:
        raise PipelineError(
            f"the sink {query} begins anew, and {directory} has the rows of another query: {_ADVICE}"
        )
    if owner is None:
        raise PipelineError(
            f"the sink {query} would write to {directory}, which something else than a pipeline of Moldau writes to: "
            f"{_ADVICE}"
        )
    try:
        found = json.loads(owner)
        of = f"the query {found['query']} of the pipeline {found['pipeline']}"
        is_own = found["id"] == known.id
    except (ValueError, TypeError, KeyError):
        raise PipelineError(
            f"{directory}/{FILE} cannot be read: it says whose this directory is. {_ADVICE.capitalize()}"
        ) from None
    if not is_own:
        raise PipelineError(
            f"the sink {query} would write to {directory}, which belongs to {of} with another checkpoint: {_ADVICE}"
        )


_ADVICE = "move that directory away, or name another one"


def claim_directory(files: FileStore, directory: str, identity: QueryIdentity) -> None:
    """Before the query writes its first batch there. Raises PipelineError."""
    check_owner(files, directory, identity.query, identity)
    path = f"{directory}/{FILE}"
    if not files.exists(path):
        owner = {"pipeline": identity.pipeline, "query": identity.query, "id": identity.id}
        files.write(path, json.dumps(owner, indent=2) + "\n")
