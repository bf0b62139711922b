"""The demo's node stops with the demo and cleans up after a killed one."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from moldau.pipelines.runtime.state_directory import StateDirectory

DEMO = """
import sys, time
from pathlib import Path
from moldau.cli.demo.node import run_node
place = Path(sys.argv[1])
with run_node(0, place, place if sys.argv[2] == "cleared" else None) as bootstrap:
    print(bootstrap, flush=True)
    time.sleep(60)
"""
WITHIN_S = 60.0


@pytest.mark.parametrize("directory", ["cleared", "kept"])
def test_a_killed_demo_stops_its_node(tmp_path: Path, directory: str) -> None:
    place = tmp_path / "demo"
    place.mkdir()
    with subprocess.Popen([sys.executable, "-c", DEMO, str(place), directory], stdout=subprocess.PIPE) as demo:
        assert demo.stdout is not None
        assert demo.stdout.readline().startswith(b"127.0.0.1:")
        (node,) = psutil.Process(demo.pid).children()
        assert (place / "data").is_dir()
        demo.kill()
    node.wait(WITHIN_S)
    assert place.exists() == (directory == "kept")


def test_the_directory_is_removed_after_java_released_its_lock(tmp_path: Path) -> None:
    place = tmp_path / "demo"
    place.mkdir()
    state = StateDirectory.of(place / "moldau-pipelines", "orders-revenue")
    command = [sys.executable, "-c", DEMO, str(place), "cleared"]
    with state.locked(), subprocess.Popen(command, stdout=subprocess.PIPE) as demo:
        (state.path / "run.json").write_text("{}")
        assert demo.stdout is not None
        assert demo.stdout.readline().startswith(b"127.0.0.1:")
        (node,) = psutil.Process(demo.pid).children()
        demo.kill()
        demo.wait()
        with pytest.raises(psutil.TimeoutExpired):
            node.wait(1)
        assert place.exists()
    node.wait(WITHIN_S)
    assert not place.exists()
