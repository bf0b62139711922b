"""The options of the Delta sink: where the table is, how it is partitioned, and who writes to it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from moldau.settings.values import did_you_mean
from moldau.spark.errors import OptionError
from moldau.spark.sink.options import known_names_hint

FORMAT = "moldau_delta"
_STORAGE = "storage."
_KNOWN = ("path", "partitionBy", "appId", "batchId", "compression")
_SPARK_OPTIONS = ("checkpointlocation", "queryname")
_COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "none")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a table is: a directory by its absolute path, or a URL of an object store with what gives access to it."""

    path: str
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Secrets are among them."""

    @property
    def is_directory(self) -> bool:
        return "://" not in self.path

    @property
    def options(self) -> dict[str, str] | None:
        return dict(self.storage_options) or None


@dataclass(frozen=True, slots=True)
class DeltaOptions:
    location: Location
    partition_by: tuple[str, ...] = ()
    app_id: str | None = None
    """Whose batches these are, in the table's application transactions. None: the streaming query's id."""
    batch_id: int | None = None
    """Of a batch write: its number among those of the application."""
    compression: str = "snappy"


def locate(path: str, storage_options: Mapping[str, str] | None = None) -> Location:
    """A relative path is one of the process that asks: executors may stand elsewhere."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise OptionError(
                f"{path!r} names the host {parts.netloc!r}, and a file URL is one of this host: write file:///…"
            )
        path = unquote(parts.path)
    elif "://" in path:
        return Location(path, tuple(sorted((storage_options or {}).items())))
    return Location(os.path.abspath(path), tuple(sorted((storage_options or {}).items())))


def parse_delta_options(options: Mapping[str, str], *, is_streaming: bool) -> DeltaOptions:
    """Names count in any case, as everywhere in Spark; those that begin with `storage.` go to the object store as they
    are, in small letters."""
    given = {name.lower(): value for name, value in options.items()}
    known = {name.lower(): name for name in _KNOWN}
    for name in given:
        if name not in known and name not in _SPARK_OPTIONS and not name.startswith((_STORAGE, "__")):
            raise OptionError(
                f"{FORMAT} has no option {name!r}{did_you_mean(name, _KNOWN) or known_names_hint(_KNOWN)}"
            )
    path = given.get("path", "").strip()
    if not path:
        raise OptionError(f"{FORMAT} needs the table's directory: .option('path', …) or .start(…)")
    app_id = given.get("appid", "").strip() or None
    batch_id = _batch_id(given.get("batchid"), app_id, is_streaming)
    compression = given.get("compression", "snappy").lower()
    if compression not in _COMPRESSIONS:
        raise OptionError(f"compression is one of {', '.join(_COMPRESSIONS)}, not {compression!r}")
    storage = {name[len(_STORAGE) :]: value for name, value in given.items() if name.startswith(_STORAGE)}
    partition_by = tuple(name.strip() for name in given.get("partitionby", "").split(",") if name.strip())
    return DeltaOptions(locate(path, storage), partition_by, app_id, batch_id, compression)


def _batch_id(text: str | None, app_id: str | None, is_streaming: bool) -> int | None:
    if text is None:
        return None
    if is_streaming:
        raise OptionError("batchId is for batch writes: a streaming query numbers its batches itself")
    if app_id is None:
        raise OptionError("batchId says nothing without appId: give the name of the application too")
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise OptionError(f"batchId is a whole number from 0 on, not {text!r}")
    return number
