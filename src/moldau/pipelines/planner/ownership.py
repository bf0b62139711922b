"""Owners of checkpoints and Parquet directories.

A file in each checkpoint and directory names the query that uses it. Any other query is refused, because it would
continue with the wrong offsets, state or batch numbers, and lose records.
"""

import hashlib
import json
import uuid
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Protocol

from moldau.pipelines.definition import PipelineDefinition, PipelineError, Source, View

IDENTITY_FILE = "pipeline.json"


@dataclass(frozen=True)
class QueryIdentity:
    pipeline: str
    query: str
    sources: dict[str, str]
    """The topics or the pattern of each source, by source name."""
    sink: str
    sql: str = field(default="", compare=False)
    """A hash of the SQL. It is not compared, because a changed query may still be able to use its state."""
    id: str = field(default="", compare=False)
    """A random id that is created with the checkpoint. It identifies the query's batches in a table."""


class FileStore(Protocol):
    def exists(self, path: str) -> bool: ...
    def read(self, path: str) -> str | None: ...
    def write(self, path: str, text: str) -> None: ...


def identity_of(
    pipeline: PipelineDefinition, query: str, sources: list[Source], sink: str, sql: str = ""
) -> QueryIdentity:
    read = {
        each.name: ", ".join(sorted(each.topics)) if each.pattern is None else f"pattern {each.pattern}"
        for each in sources
    }
    return QueryIdentity(pipeline.name, query, read, sink, sql)


def sql_hash(parts: Iterable[Source | View]) -> str:
    """Returns a hash of the views' SQL. Line breaks and other white space do not change the hash."""
    texts = [" ".join(each.sql.split()) for each in parts if isinstance(each, View) and each.sql]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()


def claim_checkpoint(files: FileStore, checkpoint: str, expected: QueryIdentity) -> QueryIdentity:
    """Returns the checkpoint's stored identity, or stores a new one. Raises PipelineError if another query owns it."""
    found = read_identity(files, checkpoint)
    if found is not None:
        check_identity(checkpoint, found, expected)
        return found
    if files.exists(f"{checkpoint}/metadata"):
        raise PipelineError(
            f"the checkpoint {checkpoint} was not created by a Moldau pipeline: choose another directory with "
            "checkpoint: …"
        )
    new = replace(expected, id=uuid.uuid4().hex)
    files.write(f"{checkpoint}/{IDENTITY_FILE}", json.dumps(asdict(new), indent=2) + "\n")
    return new


def read_identity(files: FileStore, checkpoint: str) -> QueryIdentity | None:
    text = files.read(f"{checkpoint}/{IDENTITY_FILE}")
    if text is None:
        return None
    try:
        return QueryIdentity(**json.loads(text))
    except (ValueError, TypeError):
        raise PipelineError(
            f"{checkpoint}/{IDENTITY_FILE} cannot be read. It identifies the owner of the checkpoint: restore it, or "
            "start over with moldau pipeline replay --from earliest"
        ) from None


def check_identity(checkpoint: str, found: QueryIdentity, expected: QueryIdentity) -> None:
    if found == expected:
        return
    if (found.pipeline, found.query) != (expected.pipeline, expected.query):
        raise PipelineError(
            f"the checkpoint {checkpoint} belongs to the query {found.query} of the pipeline {found.pipeline}, not "
            f"to {expected.query} of {expected.pipeline}: choose another directory with checkpoint: …"
        )
    what = (
        f"reads {_sources_text(found.sources)}, now {_sources_text(expected.sources)}"
        if found.sources != expected.sources
        else f"writes to {found.sink}, now to {expected.sink}"
    )
    raise PipelineError(
        f"the query {expected.query} has changed since its checkpoint {checkpoint} was created: it {what}. Change it "
        "back, or start over with moldau pipeline replay --from earliest (or a time)"
    )


def _sources_text(sources: dict[str, str]) -> str:
    return "; ".join(f"{name} ({read})" for name, read in sources.items())


OWNER_FILE = "_moldau_owner.json"
"""A file in a Parquet directory that names the query that writes there. Spark ignores files that start with `_`."""


def check_owner(files: FileStore, directory: str, query: str, known: QueryIdentity | None) -> None:
    """Raises PipelineError if another query wrote to the directory.

    `known` is the identity in the query's checkpoint, or None if the query has no checkpoint.
    """
    owner = files.read(f"{directory}/{OWNER_FILE}")
    if owner is None and not files.exists(f"{directory}/_spark_metadata"):
        return
    if known is None:
        raise PipelineError(
            f"the sink {query} has no checkpoint yet, but {directory} has rows of another query: {_ADVICE}"
        )
    if owner is None:
        raise PipelineError(f"the sink {query} would write to {directory}, which another program writes to: {_ADVICE}")
    try:
        found = json.loads(owner)
        of = f"the query {found['query']} of the pipeline {found['pipeline']}"
        is_own = found["id"] == known.id
    except (ValueError, TypeError, KeyError):
        raise PipelineError(
            f"{directory}/{OWNER_FILE} cannot be read. It identifies the owner of the directory. {_ADVICE.capitalize()}"
        ) from None
    if not is_own:
        raise PipelineError(
            f"the sink {query} would write to {directory}, which belongs to {of} with another checkpoint: {_ADVICE}"
        )


_ADVICE = "move that directory, or choose another one"


def claim_directory(files: FileStore, directory: str, identity: QueryIdentity) -> None:
    """Makes the query the owner of a directory. Raises PipelineError if another query owns the directory."""
    check_owner(files, directory, identity.query, identity)
    path = f"{directory}/{OWNER_FILE}"
    if not files.exists(path):
        owner = {"pipeline": identity.pipeline, "query": identity.query, "id": identity.id}
        files.write(path, json.dumps(owner, indent=2) + "\n")
