"""Resets the process state that Spark leaves behind, for tests that share a process."""

import pytest


def clear_spark_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes the session, Java and submitted settings."""
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("moldau.spark.launcher.session._running_context", lambda _: None)
    monkeypatch.setattr("moldau.spark.launcher.session._pyspark_gateway", lambda: None)
    monkeypatch.setattr("moldau.spark.launcher.session._gateway_process", None)
    monkeypatch.setattr("moldau.spark.launcher.session._submitted_settings", {})
