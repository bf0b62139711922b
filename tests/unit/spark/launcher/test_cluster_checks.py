"""An unreachable master, executors without packages, and the code archive for them."""

import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from moldau.spark.errors import LaunchError
from moldau.spark.launcher.cluster_checks import executor_error_text, reach_master
from moldau.spark.launcher.gateway import parse_connection
from moldau.spark.launcher.java import Java
from moldau.spark.launcher.master_url import parse_master
from moldau.spark.launcher.session import build_code_archive
from moldau.spark.launcher.spark_home import SparkHome
from moldau.spark.launcher.standalone import exec_master, exec_worker, worker_environment


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_the_local_address_of_the_connection_to_the_master_is_returned() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert reach_master(parse_master(f"spark://127.0.0.1:{port}"), 5) == "127.0.0.1"


def test_one_of_several_masters_is_enough() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        url = f"spark://127.0.0.1:{closed_port()},127.0.0.1:{port}"
        assert reach_master(parse_master(url), 5) == "127.0.0.1"


def test_a_master_that_refuses_connections_is_named_with_a_hint() -> None:
    url = f"spark://127.0.0.1:{closed_port()}"
    with pytest.raises(LaunchError) as raised:
        reach_master(parse_master(url), 0.3)
    assert url in str(raised.value)
    assert "connection refused" in str(raised.value)
    assert "moldau spark master" in str(raised.value)


def test_an_unresolvable_master_is_named() -> None:
    with pytest.raises(LaunchError, match=r"no-such-host\.invalid cannot be resolved"):
        reach_master(parse_master("spark://no-such-host.invalid:7077"), 0.3)


def test_another_python_version_on_executors_is_explained() -> None:
    failure = (
        "Job aborted … PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.12 "
        "than that in driver: 3.11, PySpark cannot run with different minor versions."
    )
    message = executor_error_text(failure, "python3")
    assert "Executors run Python 3.12 and this driver 3.11" in message
    assert "PYSPARK_PYTHON" in message


def test_a_missing_python_on_executors_is_explained() -> None:
    failure = 'java.io.IOException: Cannot run program "/opt/py/bin/python": error=2, No such file or directory'
    assert executor_error_text(failure, "/opt/py/bin/python").startswith(
        "Executors have no program /opt/py/bin/python."
    )


def test_other_failures_of_executors_are_reported_by_their_cause() -> None:
    failure = "An error occurred\n\tat somewhere\nModuleNotFoundError: No module named 'x'\n\tat elsewhere"
    assert executor_error_text(failure, "p").endswith(
        "cannot run Python tasks: ModuleNotFoundError: No module named 'x'"
    )
    assert executor_error_text("nothing known", "p").endswith("nothing known")


def test_the_port_and_secret_of_the_gateway() -> None:
    assert parse_connection(b"\0\0\x1f\x90\0\0\0\x03abc") == (8080, "abc")


def test_the_code_is_imported_from_its_zip_and_nowhere_else() -> None:
    path = build_code_archive()
    names = zipfile.ZipFile(path).namelist()
    assert "moldau/spark/launcher/log4j2.properties" in names
    assert "pyspark_moldau/__init__.py" in names
    assert not [name for name in names if "__pycache__" in name]
    program = (
        f"import sys; sys.path[:] = [{str(path)!r}, *(p for p in sys.path if not p.endswith('src'))]\n"
        "import pyspark_moldau, moldau.spark.datasource as source\n"
        "print(source.__file__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"{path}/moldau/spark/datasource.py"


def test_the_arguments_of_masters_and_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    java = Java(tmp_path, 25, "25", frozenset(), "JAVA_HOME")
    monkeypatch.setenv("MOLDAU_CACHE", str(tmp_path))
    monkeypatch.setenv("MOLDAU_CLASS_CACHE", "off")
    monkeypatch.setattr("moldau.spark.launcher.standalone.find_java", lambda: java)
    monkeypatch.setattr("os.execve", lambda program, command, environ: commands.append(command))
    port = closed_port()
    exec_master("127.0.0.1", port, 0)
    exec_worker("spark://h:1", "w", 0, None, None, tmp_path)
    exec_worker("spark://h:1", "w", 0, 2, "2g", tmp_path)
    master, least, most = commands
    assert master[-7:] == [
        "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"
    ]  # fmt: skip
    assert least[-8:] == [
        "org.apache.spark.deploy.worker.Worker",
        "--host", "w", "--webui-port", "0", "--work-dir", str(tmp_path), "spark://h:1"
    ]  # fmt: skip
    assert most[-5:] == ["--cores", "2", "--memory", "2g", "spark://h:1"]


def test_workers_get_the_scala_version_of_spark(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-4.3.0.jar").write_text("")
    found = worker_environment(SparkHome(tmp_path, tmp_path / "conf"))
    assert found == {"SPARK_HOME": str(tmp_path), "SPARK_SCALA_VERSION": "2.13"}
