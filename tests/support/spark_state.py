"""Resets the process state that Spark leaves behind, for tests that share a process."""

import pytest

from moldau.spark.launcher.session import SparkLauncher


def clear_spark_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the session, Java and submitted settings."""
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    launcher = SparkLauncher()
    monkeypatch.setattr("moldau.spark.launcher.session.spark_launcher", lambda: launcher)
    monkeypatch.setattr("moldau.spark.launcher.session._pyspark_state", lambda _: None)
