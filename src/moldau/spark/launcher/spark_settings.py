"""The settings of Spark that suit us better than its own, each with its reason. A user's own win."""

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from moldau.settings.option_parser import OptionValueError, parse_duration
from moldau.spark.errors import LaunchError
from moldau.spark.launcher.master_url import Master, MasterKind, parse_master

SOCKET_PATH_BYTES_MAX = 100
"""The longest path of a Unix socket is 104 bytes on some systems."""
SOCKET_NAME_BYTES = 1 + len(".00000000-0000-0000-0000-000000000000.sock")

MASTER_TIMEOUT = "spark.moldau.masterTimeout"
"""Ours: how long a standalone master may take to answer."""
EXECUTOR_TIMEOUT = "spark.moldau.executorTimeout"
"""Ours: how long the first executor may take to start, on a cluster that may be busy."""

COMMON_SETTINGS = {
    # Rows with headers reach Python writers 12 times as fast when Spark does not count their bytes one by one.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # Days and hours begin at the same moment on every machine, and as Kafka's tools show them.
    "spark.sql.session.timeZone": "UTC",
    # A progress bar of stages does not go together with rows that are printed.
    "spark.ui.showConsoleProgress": "false",
    MASTER_TIMEOUT: "30s",
    EXECUTOR_TIMEOUT: "60s",
    # Not every driver needs a web server and a port; `spark.ui.enabled=true` brings it back.
    "spark.ui.enabled": "false",
}

LOCAL_SETTINGS = {
    # Nobody else has to reach this driver, and a laptop's own name may not resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # Executors share the process of the driver.
    "spark.driver.memory": "2g",
    # `show` ends workers early, which is no error to print. On clusters the daemon may start before our code is there.
    "spark.python.daemon.module": "moldau.spark.launcher.daemon",
    # Both are for checkpoints on a local disk, where files of checksums are written that nobody reads: together with
    # the sockets below they were measured to halve the time of a small micro-batch.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}

LOCAL_SHUFFLE_PARTITIONS = (2, 8)
"""Fewest and most shuffle partitions on a local master: one for each thread, within these."""
CLUSTER_SHUFFLE_PARTITIONS = "16"


def default_settings(master: Master, *, temporary: str | None = None) -> dict[str, str]:
    """Ours, for this master; a user's settings are laid over them."""
    chosen = dict(COMMON_SETTINGS)
    temporary = tempfile.gettempdir() if temporary is None else temporary
    if len(os.fsencode(temporary)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES_MAX:
        # Rows between Java and Python do not need TCP.
        chosen["spark.python.unix.domain.socket.enabled"] = "true"
    if master.kind is MasterKind.LOCAL:
        fewest, most = LOCAL_SHUFFLE_PARTITIONS
        chosen |= LOCAL_SETTINGS
        # Every micro-batch with state pays for each of them; Spark's 200 are meant for terabytes.
        chosen["spark.sql.shuffle.partitions"] = str(min(max(master.threads, fewest), most))
    else:
        chosen["spark.sql.shuffle.partitions"] = CLUSTER_SHUFFLE_PARTITIONS
    return chosen


def parse_seconds(name: str, text: str) -> float:
    """Parses a duration of Spark's settings: 30s, 2m, 500ms; a number alone is in seconds."""
    try:
        return parse_duration(text, "s").milliseconds / 1000
    except OptionValueError as error:
        raise LaunchError(f"{name} must be {error}, not {text!r}.") from None


def read_defaults(directory: Path) -> dict[str, str]:
    """The user's `spark-defaults.conf`, if there is one."""
    try:
        text = (directory / "spark-defaults.conf").read_text()
    except OSError:
        return {}
    return parse_defaults(text)


def parse_defaults(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (re.split(r"\s*[=:]\s*|\s+", line, maxsplit=1) for line in lines if line and line[0] not in "#!")
    return {pair[0]: pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def resolve_settings(
    app: str | None,
    master: str | None,
    given: Mapping[str, str],
    *,
    submitted: Mapping[str, str],
    defaults: Mapping[str, str],
    environ: Mapping[str, str],
) -> tuple[Master, dict[str, str]]:
    """All settings of a session. What its code says is stronger than what it was submitted with, that is stronger than
    the defaults of the installation, and ours are the weakest."""
    users = {**defaults, **submitted, **{name: str(value) for name, value in given.items()}}
    where = parse_master(master or users.get("spark.master") or environ.get("MASTER") or "local[*]")
    users["spark.master"] = where.url
    if app is not None or "spark.app.name" not in users:
        users["spark.app.name"] = app or "moldau"
    return where, {**default_settings(where), **users}
