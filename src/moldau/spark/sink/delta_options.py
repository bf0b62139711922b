"""Options of the Delta sink."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from moldau.spark.errors import OptionError
from moldau.spark.options import known_options
from moldau.spark.sink.options import SPARK_OPTIONS

FORMAT = "moldau_delta"
_STORAGE = "storage."
_NAMES = ("path", "partitionBy", "appId", "batchId", "compression")
_COMPRESSIONS = ("snappy", "zstd", "gzip", "lz4", "none")


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a table: an absolute directory, or the URL of an object store with access options."""

    path: str
    storage_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """The access options of an object store. They may contain secrets, so they are not in the `repr`."""

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
    """The id of the application transactions in the table; None to use the id of the streaming query."""
    batch_id: int | None = None
    """The option batchId of a batch write; None if it is not set. Streaming queries number their batches themselves."""
    compression: str = "snappy"


def locate(path: str, storage_options: Mapping[str, str] | None = None) -> Location:
    """Returns the location. Makes a relative path absolute, because executors may have another working directory."""
    parts = urlsplit(path)
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            raise OptionError(
                f"{path!r} names the host {parts.netloc!r}, and a file URL is one of this host: write file:///…"
            )
        path = unquote(parts.path)
    if "://" not in path:
        path = os.path.abspath(path)
    return Location(path, tuple(sorted((storage_options or {}).items())))


def parse_delta_options(options: Mapping[str, str], *, is_streaming: bool) -> DeltaOptions:
    """Parses the options. Those that begin with `storage.` are passed to the object store, with names in lower case."""
    own = known_options(
        options, _NAMES, prefixes=(_STORAGE, "__"), ignored=SPARK_OPTIONS, unknown=f"{FORMAT} has no option"
    )
    path = own.text("path", "").strip()
    if not path:
        raise OptionError(f"{FORMAT} needs the table's directory: .option('path', …) or .start(…)")
    app_id = own.text("appId", "").strip() or None
    if "batchId" in own and is_streaming:
        raise OptionError("batchId is for batch writes: a streaming query numbers its batches itself")
    if "batchId" in own and app_id is None:
        raise OptionError("batchId needs appId: set the name of the application too")
    storage = {
        name.lower().removeprefix(_STORAGE): value
        for name, value in options.items()
        if name.lower().startswith(_STORAGE)
    }
    return DeltaOptions(
        locate(path, storage),
        tuple(name.strip() for name in own.text("partitionBy", "").split(",") if name.strip()),
        app_id,
        own.optional_integer("batchId", 0),
        own.choice("compression", _COMPRESSIONS, "snappy"),
    )
