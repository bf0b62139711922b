"""A Prometheus server with the generated configuration, whose intervals and durations are shortened."""

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.ports import free_port

TIMEOUT_S = 90.0
POLL_INTERVAL_S = 0.2
HOLD_S, RANGE_S = 2, 30

requires_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs Prometheus: apt-get install prometheus"
)


def shorten(rules: str) -> str:
    """Replaces the durations of alert rules: an alert fires after HOLD_S, and rates are those of RANGE_S."""
    return re.sub(r"\[\d+[smh]\]", f"[{RANGE_S}s]", re.sub(r'for: "\d+[smh]"', f'for: "{HOLD_S}s"', rules))


class PrometheusServer:
    """`directory` has prometheus.yml and the rule files."""

    def __init__(self, directory: Path) -> None:
        self._port = free_port()
        self._log = (directory / "prometheus.out").open("wb")
        self._process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            stdout=self._log,
            stderr=self._log,
        )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{self._port}", timeout=30, trust_env=False)

    def __enter__(self) -> "PrometheusServer":
        try:
            wait_until(lambda: self._client.get("/-/ready").status_code == 200, "Prometheus is ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._client.close()
        self._log.close()

    def _get(self, path: str, **parameters: str) -> Any:
        response = self._client.get(f"/api/v1/{path}", params=parameters)
        body = response.json()
        assert body["status"] == "success", body
        return body["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Returns the samples of an expression now."""
        found: list[dict[str, Any]] = self._get("query", query=expression)["result"]
        return found

    def label_values(self, label: str, selector: str) -> list[str]:
        values: list[str] = self._get(f"label/{label}/values", **{"match[]": selector})
        return values

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """Returns the labels of the alerts that fire, by name."""
        alerts: dict[str, list[dict[str, str]]] = {}
        for each in self._get("alerts")["alerts"]:
            if each["state"] == "firing":
                alerts.setdefault(each["labels"]["alertname"], []).append(each["labels"])
        return alerts

    def failed_rules(self) -> dict[str, str]:
        """Returns the errors of rules that could not be evaluated."""
        return {
            rule["name"]: rule["lastError"]
            for group in self._get("rules")["groups"]
            for rule in group["rules"]
            if rule["health"] == "err"
        }

    def rule_count(self) -> int:
        return sum(len(group["rules"]) for group in self._get("rules")["groups"])


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = TIMEOUT_S) -> float:
    """Waits until the condition is true. Returns how many seconds it took."""
    start = time.monotonic()
    while True:
        problem: Exception | None = None
        try:
            if condition():
                return time.monotonic() - start
        except httpx.HTTPError as error:
            problem = error
        if time.monotonic() - start > timeout_s:
            raise TimeoutError(f"not within {timeout_s} s: {what}") from problem
        time.sleep(POLL_INTERVAL_S)
