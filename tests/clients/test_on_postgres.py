"""A sample of the client tests with nodes that keep everything in Postgres: the group stories of the first seed, and a
client. MOLDAU_TEST_STORE=postgres runs all tests in this way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.postgres import HOW_TO_GET_ONE, find_servers

CLIENTS = Path(__file__).parent
SAMPLE = ("groups/test_seed_stories.py", "test_kcat.py")
VERSIONS = sorted(find_servers(), key=int)


@pytest.mark.parametrize("version", sorted({*VERSIONS[:1], *VERSIONS[-1:]}) or [""])
def test_clients_work_on_postgres(version: str, only_moldau: None) -> None:
    if not version:
        pytest.skip(HOW_TO_GET_ONE)
    if os.environ.get("MOLDAU_TEST_STORE") == "postgres":
        pytest.skip("all tests run on Postgres")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *(str(CLIENTS / each) for each in SAMPLE)]
    environment = {**os.environ, "MOLDAU_TEST_STORE": "postgres", "MOLDAU_TEST_POSTGRES": version}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:]
    assert " passed" in done.stdout
