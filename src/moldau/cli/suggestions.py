"""Errors for topics and groups that do not exist, with the names that the user may have meant."""

import difflib
import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Literal, TypeVar

from moldau.cli.exit_codes import NotFoundError
from moldau.client.admin.admin import Admin
from moldau.client.errors import ErrorCode, KafkaError
from moldau.client.net.cluster import Cluster

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

Kind = Literal["topic", "group"]

LOOKUP_TIMEOUT_MS = 5_000
"""How long the lookup of existing names may take. The command has already failed."""
SIMILARITY_MIN = 0.6

_MISSING_CODES: dict[Kind, tuple[ErrorCode, ...]] = {
    "topic": (ErrorCode.unknown_topic_or_partition, ErrorCode.unknown_topic_id),
    "group": (ErrorCode.group_id_not_found,),
}


def closest_name(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most similar to a misspelt one; None if none is similar. Ignores case."""
    by_folded = {each.casefold(): each for each in known}
    matches = difflib.get_close_matches(name.casefold(), by_folded, n=1, cutoff=SIMILARITY_MIN)
    return by_folded[matches[0]] if matches else None


def missing_error(kind: Kind, name: str, known: Iterable[str]) -> NotFoundError:
    """Returns the error for a topic or group that is not among the known ones."""
    # Names with control characters must not reach the terminal as they are.
    shown = name if name.isprintable() else json.dumps(name)
    closest = closest_name(name, known)
    advice = f"Run `moldau {kind} list` to see the existing {kind}s." if closest is None else f"Did you mean {closest}?"
    return NotFoundError(f"{kind.capitalize()} {shown} does not exist. {advice}")


async def explain_missing(
    cluster: Cluster, error: KafkaError, *, topics: Sequence[str] = (), groups: Sequence[str] = ()
) -> NotFoundError | None:
    """Explains an error with those of the named topics or groups that do not exist.

    Returns None if the error has another cause, or if the existing names cannot be listed.
    """
    named: dict[Kind, Sequence[str]] = {"topic": topics, "group": groups}
    for kind, names in named.items():
        if names and error.code in _MISSING_CODES[kind]:
            known = await _known_names(cluster, kind)
            if known is None:
                return None
            missing = [missing_error(kind, name, known) for name in dict.fromkeys(names) if name not in known]
            if missing:
                return NotFoundError("\n".join(map(str, missing)))
    return None


async def explain_results(cluster: Cluster, results: Mapping[K, V], kind: Kind) -> dict[K, V | NotFoundError]:
    """Replaces the errors of topics or groups that do not exist. The keys of the results are names."""
    explained: dict[K, V | NotFoundError] = dict(results)
    missing = [
        key for key, result in results.items() if isinstance(result, KafkaError) and result.code in _MISSING_CODES[kind]
    ]
    known = await _known_names(cluster, kind) if missing else None
    if known is not None:
        explained |= {key: missing_error(kind, str(key), known) for key in missing if key not in known}
    return explained


async def _known_names(cluster: Cluster, kind: Kind) -> set[str] | None:
    admin = Admin(cluster, timeout_ms=LOOKUP_TIMEOUT_MS)
    try:
        if kind == "group":
            return {each.group_id for each in await admin.list_groups()}
        return {each.name for each in await admin.list_topics(internal=True)}
    except KafkaError:
        # The command reports the error that made it look.
        return None
