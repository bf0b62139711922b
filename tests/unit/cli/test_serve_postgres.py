"""`moldau serve` with a Postgres store: errors before it starts, and no secrets in its output."""

import os
import subprocess
import sys
from pathlib import Path

from support.broker_process import clean_environment
from support.postgres import PostgresServer

COMMAND = [sys.executable, "-m", "moldau", "serve", "--listen", "127.0.0.1:0"]
SECRET = "s3cret"


def refused(*flags: str, **environment: str) -> str:
    """Returns the errors of a node that does not start."""
    done = subprocess.run(
        [*COMMAND, *flags], capture_output=True, text=True, timeout=60, env={**clean_environment(), **environment}
    )
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert SECRET not in done.stderr
    return done.stderr


def test_a_missing_psycopg_is_named_with_the_command_that_installs_it(tmp_path: Path) -> None:
    (tmp_path / "psycopg.py").write_text("raise ImportError('No module named psycopg')")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    said = refused("--store", f"postgresql://user:{SECRET}@127.0.0.1/db", PYTHONPATH=path)
    assert "pip install 'moldau[postgres]'" in said


def test_other_stores_do_not_load_psycopg() -> None:
    program = (
        "import sys, moldau.cli.serve_node\n"
        "from moldau.node.node import Node\n"
        "from moldau.platform.system import system_platform\n"
        "from moldau.settings.broker import BrokerSettings\n"
        "for store in ('files', 'memory'): Node(system_platform(), BrokerSettings(store=store))\n"
        "print([name for name in sys.modules if name.startswith(('psycopg', 'moldau.logs.postgres'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_password_in_a_flag_is_warned_of_and_never_shown(postgres: PostgresServer) -> None:
    url = postgres.database_url("missing").replace("moldau@", f"moldau:{SECRET}@")
    said = refused("--store", url)
    assert "other users of this machine can see the password" in said
    assert 'database "missing" does not exist' in said


def test_a_password_in_the_environment_is_not_warned_of(postgres: PostgresServer) -> None:
    url = postgres.database_url("missing").replace("moldau@", f"moldau:{SECRET}@")
    said = refused(MOLDAU_STORE=url)
    assert "can see the password" not in said
    assert 'database "missing" does not exist' in said


def test_an_invalid_url_is_refused() -> None:
    assert "is no valid URL of Postgres" in refused("--store", "postgresql://127.0.0.1/db?no_such_option=1")


def test_a_schema_of_another_node_is_refused(postgres: PostgresServer, tmp_path: Path) -> None:
    flags = ["--store", postgres.url, "--postgres-schema", "node_one"]
    process = subprocess.Popen([*COMMAND, *flags], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline().startswith("Moldau is ready")
        process.terminate()
    said = refused(*flags, "--node-id", "2")
    assert "belongs to node 1, not to node 2: start with node.id=1, or with another postgres.schema" in said
