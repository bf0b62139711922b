"""`moldau generate`: the files are read by the tools they are for, or by parsers of their formats."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from moldau.cli.commands import app
from moldau.observe.alert_rules import ALERT_RULES
from moldau.settings.sources import build_settings

requires_promtool = pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool")
requires_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


def generate(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["generate", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def error_of(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["generate", *arguments])
    return result.exit_code, " ".join(re.sub(r"[│╭╮╰╯─]", "", result.output).split())


# Prometheus


def test_prometheus_gets_all_targets_and_the_rules(tmp_path: Path) -> None:
    generate(
        "prometheus", "alpha:8001", "[::1]:8002", "--cluster", "west", "--interval", "5", "-o", str(tmp_path / "m")
    )
    config = yaml.safe_load((tmp_path / "m" / "prometheus.yml").read_text())
    [job] = config["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["alpha:8001", "[::1]:8002"], "labels": {"cluster": "west"}}]
    assert config["global"] == {"scrape_interval": "5s", "evaluation_interval": "5s"}
    [rules_file] = config["rule_files"]
    [group] = yaml.safe_load((tmp_path / "m" / rules_file).read_text())["groups"]
    assert [each["alert"] for each in group["rules"]] == [each.name for each in ALERT_RULES]
    down = group["rules"][0]
    assert down["expr"] == f"up{{job='{job['job_name']}'}} == 0"


@requires_promtool
def test_promtool_accepts_configuration_and_rules(tmp_path: Path) -> None:
    generate("prometheus", "--alertmanager", "alerts:9093", "-o", str(tmp_path))
    done = subprocess.run(["promtool", "check", "config", tmp_path / "prometheus.yml"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERT_RULES)} rules found" in done.stdout


def test_both_parts_can_be_printed(tmp_path: Path) -> None:
    generate("prometheus", "-o", str(tmp_path))
    assert generate("prometheus") == (tmp_path / "prometheus.yml").read_text()
    assert generate("prometheus", "--alerts") == (tmp_path / "moldau-alerts.yml").read_text()


@pytest.mark.parametrize("target", ["alpha", "alpha:", ":8001", "alpha:0", "alpha:65536", "http://alpha:8001", "a b:1"])
def test_targets_are_checked(target: str) -> None:
    code, output = error_of("prometheus", target)
    assert code == 2
    assert "is not HOST:PORT" in output


def test_names_of_alerts_are_unique_and_every_alert_says_what_to_look_at() -> None:
    assert len({each.name for each in ALERT_RULES}) == len(ALERT_RULES)
    for each in ALERT_RULES:
        assert each.name.startswith("Moldau")
        assert each.severity in ("critical", "warning")
        assert re.fullmatch(r"\d+[sm]", each.hold)
        assert each.summary
        assert each.description.endswith(".")
        # Labels that `by` removes cannot be shown.
        kept = re.match(r"(?:max|sum|count) by \(([^)]*)\)", each.expression)
        if kept is not None and " / " not in each.expression:
            shown = set(re.findall(r"\$labels\.(\w+)", each.summary + each.description))
            assert shown <= {label.strip() for label in kept[1].split(",")}, each.name


# Grafana


def test_the_dashboard_shows_no_lag_of_a_topic_that_is_partly_unknown() -> None:
    """Nodes leave out the sum of the topic then, while a sum over partitions would be that of the others."""
    panels = json.loads(generate("grafana"))["panels"]
    (lag,) = [each for each in panels if each["title"] == "Lag in records"]
    assert "(kafka_consumergroup_lag_sum{" in lag["targets"][0]["expr"]


def test_the_dashboard_has_panels_that_do_not_overlap() -> None:
    dashboard = json.loads(generate("grafana", "--title", "West"))
    assert dashboard["title"] == "West"
    panels: list[dict[str, Any]] = dashboard["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        position = panel["gridPos"]
        cells = {
            (position["x"] + column, position["y"] + line)
            for column in range(position["w"])
            for line in range(position["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(column < 24 for column, _ in cells)
        taken |= cells
    variables = {each["name"] for each in dashboard["templating"]["list"]} | {"__rate_interval"}
    queries = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    assert {name for each in queries for name in re.findall(r"\$(\w+)", each)} <= variables
    for each in queries:
        assert each.count("(") == each.count(")")
        assert "$cluster" in each, f"{each} mixes clusters"


# Compose


@pytest.mark.parametrize("nodes", [1, 2, 3, 7])
def test_compose_starts_nodes_with_valid_settings(nodes: int) -> None:
    document = yaml.safe_load(generate("compose", "--nodes", str(nodes), "--image", "registry/moldau:1"))
    services = document["services"]
    assert list(services) == [f"broker-{number}" for number in range(1, nodes + 1)] == list(document["volumes"])
    cluster_ids, published = set(), set()
    for number, (name, service) in enumerate(services.items(), 1):
        assert service["image"] == "registry/moldau:1"
        settings = build_settings(environment=service["environment"])
        cluster_ids.add(settings.cluster_id)
        published |= set(service["ports"])
        assert settings.node_id == number
        assert [str(each) for each in settings.advertised] == [
            f"INTERNAL://{name}:9092",
            f"EXTERNAL://127.0.0.1:{9091 + number}",
        ]
        assert settings.inter_broker_listener == "INTERNAL"
        assert len(settings.quorum_voters) in (1, 3, 5)
        assert settings.default_replication_factor == min(3, nodes)
        assert service["volumes"] == [f"{name}:{settings.data_dir}"]
    assert len(cluster_ids) == 1
    assert len(published) == 2 * nodes
    assert all(each.startswith("127.0.0.1:") for each in published), "there are no users: this host only"


def test_compose_with_monitoring_has_the_same_files_as_the_other_commands() -> None:
    document = yaml.safe_load(generate("compose", "-n", "2", "--monitoring"))
    contents = {name: config["content"].replace("$$", "$") for name, config in document["configs"].items()}
    assert "$" not in document["configs"]["alerts"]["content"].replace("$$", "")
    assert contents["alerts"] == generate("prometheus", "--alerts")
    assert contents["prometheus"] == generate("prometheus", "broker-1:8001", "broker-2:8001")
    assert json.loads(contents["dashboard"]) == json.loads(generate("grafana"))
    mounted = {each["source"] for service in document["services"].values() for each in service.get("configs", ())}
    assert mounted == contents.keys()
    [datasource] = yaml.safe_load(contents["datasource"])["datasources"]
    assert datasource["url"] == "http://prometheus:9090"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--port", "65535"), "need ports above 65535"),
        (("--http-port", "9093"), "overlap"),
        (("--monitoring", "--http-port", "3000"), "use the ports"),
    ],
)
def test_ports_of_compose_are_checked(arguments: tuple[str, ...], problem: str) -> None:
    code, output = error_of("compose", *arguments)
    assert code == 2
    assert problem in output


# systemd


@requires_systemd
def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "moldau.service"
    generate("systemd", "--user", "root", "--data-dir", "/srv/moldau", "--config", "/etc/m.toml", "-o", str(unit))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "moldau" not in done.stderr
    [command] = re.findall(r"^ExecStart=(.*)$", unit.read_text(), re.M)
    program, *flags = command.split()
    assert Path(program).name == "moldau"
    assert flags == ["serve", "--config", "/etc/m.toml", "--data-dir", "/srv/moldau"]


def test_the_steps_in_the_unit_create_everything_that_the_service_needs(tmp_path: Path) -> None:
    unit = generate(
        "systemd", "--user", "owner", "--data-dir", str(tmp_path / "data"), "--config", str(tmp_path / "etc" / "m.toml")
    )
    steps = re.findall(r"^#   (.*)$", unit, re.M)
    files = [step.replace("-o owner ", "") for step in steps if "install" in step]
    for _ in range(2):  # The steps can be repeated, and keep the settings.
        subprocess.run(["sh", "-ec", "\n".join(files)], check=True)
        (tmp_path / "etc" / "m.toml").write_text("node.id = 7\n")
    assert (tmp_path / "etc" / "m.toml").read_text() == "node.id = 7\n"
    assert (tmp_path / "data").is_dir()
    assert any(step.startswith("useradd ") and step.endswith(" owner") for step in steps)


@pytest.mark.parametrize(
    ("path", "problem"), [("data", "not absolute"), ("/srv/my data", "space"), ("/srv/%i", "expands")]
)
def test_paths_of_the_unit_are_checked(path: str, problem: str) -> None:
    code, output = error_of("systemd", "--data-dir", path)
    assert code == 2
    assert problem in output


# Output


@pytest.mark.parametrize("command", ["grafana", "compose", "systemd"])
def test_output_goes_to_a_file(command: str, tmp_path: Path) -> None:
    arguments = ("--cluster-id", "NxDJtDpQRkqg6pP0aLAZKA") if command == "compose" else ()
    generate(command, *arguments, "-o", str(tmp_path / "file"))
    assert (tmp_path / "file").read_text() == generate(command, *arguments)
    code, output = error_of(command, "-o", str(tmp_path / "missing" / "file"))
    assert code == 1
    assert "No such file or directory" in output
