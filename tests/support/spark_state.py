"""What a process is before it has had anything to do with Spark, for tests that run beside others in one."""

import pytest


def clear_spark_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session, no Java, nothing that it was submitted with."""
    for name in ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "MASTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("moldau.spark.launcher.session._running_context", lambda _: None)
    monkeypatch.setattr("moldau.spark.launcher.session._pyspark_gateway", lambda: None)
    monkeypatch.setattr("moldau.spark.launcher.session._gateway_process", None)
    monkeypatch.setattr("moldau.spark.launcher.session._submitted_settings", {})
