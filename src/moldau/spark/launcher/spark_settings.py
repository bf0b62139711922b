"""The default settings of Spark sessions, with reasons. The user's settings override these defaults."""

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from moldau.settings.option_parser import OptionValueError, parse_duration
from moldau.spark.errors import LaunchError
from moldau.spark.launcher.master_url import Master, MasterKind, parse_master

SOCKET_PATH_BYTES_MAX = 100
"""The maximum length of a Unix socket path. It is below 104 bytes, which is the limit of some systems."""
SOCKET_NAME_BYTES = 1 + len(".00000000-0000-0000-0000-000000000000.sock")

MASTER_TIMEOUT = "spark.moldau.masterTimeout"
"""How long a standalone master may take to respond."""
EXECUTOR_TIMEOUT = "spark.moldau.executorTimeout"
"""How long the first executor may take to start on a busy cluster."""

COMMON_SETTINGS = {
    # This value means no limit, so Spark measures no rows. Rows with headers reach Python writers 12 times faster.
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
    # With UTC, days and hours are the same on every machine and in Kafka's tools.
    "spark.sql.session.timeZone": "UTC",
    # The progress bar would garble printed rows.
    "spark.ui.showConsoleProgress": "false",
    MASTER_TIMEOUT: "30s",
    EXECUTOR_TIMEOUT: "60s",
    # The web UI is off, because drivers rarely need a web server and a port.
    "spark.ui.enabled": "false",
}

LOCAL_SETTINGS = {
    # Use the loopback address, because no other machine connects to a local driver and a laptop's host name may not
    # resolve.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # The driver needs more memory than Spark's default of 1g, because the tasks also run in the driver's process.
    "spark.driver.memory": "2g",
    # This daemon prints no errors when `DataFrame.show` ends Python workers early. Clusters do not use this daemon,
    # because it may start on an executor before Moldau's code has been copied there.
    "spark.python.daemon.module": "moldau.spark.launcher.daemon",
    # These two settings avoid checksum files for local checkpoints. Without these files and with Unix sockets, a small
    # micro-batch takes half the time.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}


def default_settings(master: Master, *, temporary: str | None = None) -> dict[str, str]:
    chosen = dict(COMMON_SETTINGS)
    temporary = tempfile.gettempdir() if temporary is None else temporary
    if len(os.fsencode(temporary)) + SOCKET_NAME_BYTES <= SOCKET_PATH_BYTES_MAX:
        # Unix sockets are faster than TCP between Java and Python.
        chosen["spark.python.unix.domain.socket.enabled"] = "true"
    if master.kind is MasterKind.LOCAL:
        chosen |= LOCAL_SETTINGS
    # Use few partitions, because stateful micro-batches have a cost per partition. Spark's default of 200 is for
    # terabytes. A local master gets one partition per thread, but at least 2 and at most 8.
    partitions = min(max(master.threads, 2), 8) if master.kind is MasterKind.LOCAL else 16
    chosen["spark.sql.shuffle.partitions"] = str(partitions)
    return chosen


def parse_seconds(name: str, text: str) -> float:
    """Parses a duration of Spark's settings, such as 30s, 2m or 500ms. A number without a unit is in seconds."""
    try:
        return parse_duration(text, "s").milliseconds / 1000
    except OptionValueError as error:
        raise LaunchError(f"{name} must be {error}, not {text!r}.") from None


def read_defaults(directory: Path) -> dict[str, str]:
    """Reads the user's `spark-defaults.conf`, if it exists."""
    with suppress(OSError):
        return parse_defaults((directory / "spark-defaults.conf").read_text())
    return {}


def parse_defaults(text: str) -> dict[str, str]:
    lines = (line.strip() for line in text.splitlines())
    pairs = (re.split(r"\s*[=:]\s*|\s+", line, maxsplit=1) for line in lines if line and line[0] not in "#!")
    return {pair[0]: pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def resolve_settings(
    app: str | None,
    master: str | None,
    session_settings: Mapping[str, str],
    *,
    submitted: Mapping[str, str],
    defaults: Mapping[str, str],
    environ: Mapping[str, str],
) -> tuple[Master, dict[str, str]]:
    """Merges settings. Highest precedence first: code, submit command, spark-defaults.conf, Moldau's defaults."""
    users = {**defaults, **submitted, **{name: str(value) for name, value in session_settings.items()}}
    parsed = parse_master(master or users.get("spark.master") or environ.get("MASTER") or "local[*]")
    users["spark.master"] = parsed.url
    if app is not None or "spark.app.name" not in users:
        users["spark.app.name"] = app or "moldau"
    return parsed, {**default_settings(parsed), **users}
