"""Precedence and errors of settings sources."""

from pathlib import Path

import pytest

from moldau.errors import InvalidConfigError
from moldau.settings.broker import BrokerSettings
from moldau.settings.sources import build_settings


def toml(tmp_path: Path, text: str) -> str:
    path = tmp_path / "moldau.toml"
    path.write_text(text)
    return str(path)


def complaint(**sources: object) -> str:
    with pytest.raises(InvalidConfigError) as refused:
        build_settings(**sources)  # type: ignore[arg-type]
    return str(refused.value)


def test_without_sources_all_settings_are_default() -> None:
    assert build_settings() == BrokerSettings()


def test_flags_override_environment_and_file(tmp_path: Path) -> None:
    file = toml(tmp_path, "num.partitions = 2\nstore = 'memory'\nfetch.max.bytes = 4096\n")
    environment = {"MOLDAU_NUM_PARTITIONS": "3", "MOLDAU_FETCH_MAX_BYTES": "5000", "PATH": "/bin"}
    settings = build_settings(file=file, environment=environment, flags={"num.partitions": "4"})
    assert (settings.num_partitions, settings.fetch_max_bytes, settings.store) == (4, 5000, "memory")
    assert settings.explicitly_set == {"num.partitions", "fetch.max.bytes", "store"}


def test_toml_tables_lists_and_types(tmp_path: Path) -> None:
    file = toml(
        tmp_path,
        """
        listen = ["127.0.0.1:0", "LAN://10.0.0.1:9092"]
        auto.create.topics.enable = false
        [log]
        retention.ms = 1000
        cleanup.policy = "compact,delete"
        [log.cleaner]
        min.cleanable.ratio = 0.25
        """,
    )
    settings = build_settings(file=file)
    assert settings.listen == ("127.0.0.1:0", "LAN://10.0.0.1:9092")
    assert settings.auto_create_topics_enable is False
    assert settings.topic_defaults.retention_ms == 1000
    assert settings.topic_defaults.cleanup_policy == ("compact", "delete")
    assert settings.topic_defaults.min_cleanable_dirty_ratio == 0.25


def test_the_segment_size_has_a_variable_without_prefix() -> None:
    short = {"MAX_SEGMENT_SIZE_BYTES": "2048"}
    assert build_settings(environment=short).topic_defaults.segment_bytes == 2048
    both = short | {"MOLDAU_LOG_SEGMENT_BYTES": "4096"}
    assert build_settings(environment=both).topic_defaults.segment_bytes == 4096
    assert "environment MAX_SEGMENT_SIZE_BYTES" in complaint(environment={"MAX_SEGMENT_SIZE_BYTES": "much"})


def test_the_config_file_can_be_set_in_the_environment(tmp_path: Path) -> None:
    file = toml(tmp_path, "node.id = 7")
    assert build_settings(environment={"MOLDAU_CONFIG": file}).node_id == 7


def test_kafka_aliases_are_accepted() -> None:
    settings = build_settings(flags={"listeners": "PLAINTEXT://127.0.0.1:1", "log.dirs": "/data", "broker.id": "5"})
    assert (settings.listen, settings.data_dir, settings.node_id) == (("PLAINTEXT://127.0.0.1:1",), "/data", 5)


@pytest.mark.parametrize(
    ("values", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
        ({"log.retention.hours": "0"}, 0),
    ],
)
def test_the_finest_unit_of_a_source_wins(values: dict[str, str], retention_ms: int) -> None:
    assert build_settings(flags=values).topic_defaults.retention_ms == retention_ms


def test_precedence_of_sources_ignores_units() -> None:
    settings = build_settings(environment={"MOLDAU_LOG_RETENTION_MS": "5"}, flags={"log.retention.hours": "1"})
    assert settings.topic_defaults.retention_ms == 3_600_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("num.partitions = 0", "line 1: num.partitions cannot be 0; expected an integer, 1 or more"),
        ("\n[num]\npartitions = '3'", "line 3: num.partitions cannot be '3'; expected an integer, 1 or more"),
        ("num.partitions = true", "line 1: num.partitions cannot be True; expected an integer, 1 or more"),
        ("num.partitions = 1.5", "line 1: num.partitions cannot be 1.5; expected an integer, 1 or more"),
        ("delete.topic.enable = 1", "line 1: delete.topic.enable cannot be 1; expected true or false"),
        ("log.cleaner.min.cleanable.ratio = nan", "cannot be nan; expected a number from 0 to 1"),
        ("listen = [1]", "line 1: listen cannot be [1]; expected comma-separated host:port"),
        ("store = 5", "line 1: store cannot be 5; expected files, memory, or a URL"),
        ("# a\nnum.partition = 1", "line 2: no such setting: num.partition; did you mean num.partitions?"),
        ("[log.retention]\nmss = 1", "line 2: no such setting: log.retention.mss; did you mean log.retention.ms?"),
        ("num.partitions = ", "is not valid TOML"),
    ],
)
def test_file_errors_have_line_numbers(tmp_path: Path, text: str, said: str) -> None:
    assert said in complaint(file=toml(tmp_path, text))


def test_names_that_conflict_in_toml_can_be_quoted(tmp_path: Path) -> None:
    said = complaint(file=toml(tmp_path, "max.connections = 9\nmax.connections.per.ip = 5"))
    assert 'quote the longer name: "max.connections.per.ip" = 5' in said
    settings = build_settings(file=toml(tmp_path, 'max.connections = 9\n"max.connections.per.ip" = 5'))
    assert (settings.max_connections, settings.max_connections_per_ip) == (9, 5)


def test_an_unreadable_file_is_an_error(tmp_path: Path) -> None:
    assert "No such file" in complaint(file=str(tmp_path / "none.toml"))
    (tmp_path / "latin.toml").write_bytes(b"store = '\xe9'")
    assert "not UTF-8 text" in complaint(file=str(tmp_path / "latin.toml"))


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("MOLDAU_LOG_RETENTION_MS", "a week", "log.retention.ms cannot be 'a week'; expected an integer, -1 or more"),
        ("MOLDAU_LOG_RETENTION_HOURS", "1.5", "log.retention.hours cannot be '1.5'; expected an integer, -1 or more"),
        ("MOLDAU_LISTNE", "x", "no such setting; did you mean MOLDAU_LISTEN?"),
        ("MOLDAU_DATA_DIR", "", "data.dir cannot be ''; expected a path"),
    ],
)
def test_environment_errors_name_the_variable(variable: str, text: str, said: str) -> None:
    assert complaint(environment={variable: text}) == f"environment {variable}: {said}"


def test_flag_errors_name_the_flag() -> None:
    assert complaint(flags={"store": "tape"}) == (
        "flag --store: store cannot be 'tape'; expected files, memory, or a URL such as postgresql://user@host/database"
    )


@pytest.mark.parametrize("name", ["PIPELINES", "CACHE", "CLASS_CACHE", "NATIVE"])
def test_variables_of_pipelines_and_spark_do_not_stop_a_node(name: str) -> None:
    assert build_settings(environment={f"MOLDAU_{name}": "off"}).explicitly_set == set()


def test_variables_of_kubernetes_services_are_ignored() -> None:
    links = {
        "MOLDAU_SERVICE_HOST": "10.0.0.1",
        "MOLDAU_BOOTSTRAP": "127.0.0.1:9092",
        "MOLDAU_SERVICE_PORT": "9092",
        "MOLDAU_SERVICE_PORT_KAFKA": "9092",
        "MOLDAU_PORT": "tcp://10.0.0.1:9092",
        "MOLDAU_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        "MOLDAU_PORT_9092_TCP_PROTO": "tcp",
    }
    assert build_settings(environment=links) == BrokerSettings()


def test_aliases_may_agree_but_not_conflict() -> None:
    assert build_settings(flags={"data.dir": "/a", "log.dirs": "/a"}).data_dir == "/a"
    said = complaint(flags={"data.dir": "/a", "log.dirs": "/b"})
    assert said.startswith("flag --data-dir and flag --log-dirs: data.dir and log.dirs are the same setting")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"queued.max.request.bytes": "1000"}, "queued.max.request.bytes (1000) is less than"),
        ({"log.cleaner.min.compaction.lag.ms": "5", "log.cleaner.max.compaction.lag.ms": "4"}, "is greater than"),
    ],
)
def test_conflicting_settings_are_rejected(values: dict[str, str], message: str) -> None:
    assert message in complaint(flags=values)


def test_a_conflict_names_both_origins() -> None:
    said = complaint(
        environment={"MOLDAU_SOCKET_REQUEST_MAX_BYTES": "6000"},
        flags={"queued.max.request.bytes": "5000", "listen": "a:1"},
    )
    assert said.endswith(
        "(socket.request.max.bytes is set by environment MOLDAU_SOCKET_REQUEST_MAX_BYTES, "
        "queued.max.request.bytes is set by flag --queued-max-request-bytes)"
    )


def test_an_exposed_listener_is_rejected_with_its_origin() -> None:
    said = complaint(environment={"MOLDAU_LISTEN": "0.0.0.0:9092"})
    assert "set advertised.listeners" in said
    assert said.endswith("(listen is set by environment MOLDAU_LISTEN)")
