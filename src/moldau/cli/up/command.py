"""`moldau up`: runs a cluster on this machine, one process per node."""

import asyncio
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.console import CommandError, out_console, pluralize, print_error, print_notice
from moldau.cli.data_lock import data_lock
from moldau.cli.parameters import option, parse_name_values, validate_text
from moldau.cli.signals import stop_signal
from moldau.cli.up.plan import DEFAULT_STORE, ClusterPlan, check_host, make_plan, write_plan
from moldau.cli.up.processes import NodeProcess, describe_exit, kill_all
from moldau.errors import StorageError
from moldau.settings.postgres_url import check_store, hide_password, is_postgres_url

SLOW_NOTICE_DELAY_S = 15.0
NODES_MAX = 100
KILLED = 137


def _validate_store(store: str | None) -> str | None:
    if store is not None and store != DEFAULT_STORE and (not is_postgres_url(store) or check_store(store) is not None):
        raise typer.BadParameter(f"{hide_password(store)} is not a URL such as postgresql://user@host/database")
    return store


def up(
    nodes: Annotated[
        int, typer.Option("--nodes", "-n", min=1, max=NODES_MAX, metavar="NUMBER", help="Number of nodes.")
    ] = 3,
    port: Annotated[
        int | None,
        option(
            "--port",
            "PORT",
            "Port of the first node; the others use the next ports. 9092 by default.",
            min=1,
            max=65_535,
        ),
    ] = None,
    http_port: Annotated[
        int | None,
        option(
            "--http-port",
            "PORT",
            "HTTP port of the first node; the others use the next ports. No HTTP by default.",
            min=1,
            max=65_535,
        ),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Directory for the data, with a subdirectory per node.")
    ] = Path("moldau-cluster"),
    store: Annotated[
        str | None,
        option(
            "--store",
            "URL",
            "Postgres database for the data of all nodes, each in a schema of its own: moldau_1 and so on. Files in "
            "the data directory by default.",
            _validate_store,
        ),
    ] = None,
    write_caching: Annotated[
        bool,
        typer.Option(
            "--write-caching/--no-write-caching",
            help="Acknowledge records before fsync. Faster, but a power failure of all nodes can lose the latest ones.",
        ),
    ] = False,
    settings: Annotated[
        list[str] | None,
        option(
            "--set -s",
            "NAME=VALUE",
            "Setting for all nodes; can be repeated. `moldau settings` lists them.",
            validate_text,
        ),
    ] = None,
) -> None:
    """Run a cluster on this machine until it is stopped (Ctrl-C, SIGTERM).

    Node 1 listens on the given port and has its data in DIR/node-1, its log in log.txt and its process id in pid; and
    so on. A node that exits is not restarted, so that you can see how the others react.

    moldau up --nodes 3 --port 9092 --data-dir ./cluster

    moldau up --nodes 3 --store postgresql://localhost/postgres
    """
    try:
        values = parse_name_values(settings or [], "--set")
        with data_lock(str(data_dir)):
            plan = make_plan(
                data_dir, nodes, port, values, write_caching=write_caching, http_port=http_port, store=store
            )
            for notice in check_host(plan):
                print_notice(notice)
            write_plan(data_dir, plan)
            raise typer.Exit(asyncio.run(_run(plan)))
    except (CommandError, StorageError) as error:
        print_error(error)
    except OSError as error:
        print_error(CommandError(f"{error.filename or data_dir}: {error.strerror or error}"))
    raise typer.Exit(1)


async def _run(plan: ClusterPlan) -> int:
    processes = [NodeProcess(node) for node in plan.nodes]
    try:
        with stop_signal() as stop_requested:
            try:
                for process in processes:
                    await process.start()
                if await _wait_all_ready(processes, stop_requested):
                    _print_cluster_info(plan)
                    await _watch(processes, stop_requested)
            finally:
                is_stopped = stop_requested.done() and not stop_requested.cancelled()
                if is_stopped:
                    out_console.print("Stopping. Press Ctrl-C again to kill nodes that have not stopped.")
                await _stop(processes)
    except asyncio.CancelledError:
        # A second signal cancelled this task.
        print_notice("Killing the nodes that have not stopped.")
        return KILLED
    finally:
        await kill_all(processes)
    return 0 if is_stopped else 1


async def _wait_all_ready(processes: list[NodeProcess], stop_requested: "asyncio.Future[int]") -> bool:
    """Waits until all nodes are ready. Returns False if a stop is requested first. Raises CommandError if one exits."""

    async def wait_ready(process: NodeProcess) -> None:
        node = process.plan
        if not await process.wait_ready():
            raise CommandError(f"Node {node.node_id} failed to start: {process.last_log_line()}")
        http = "" if node.http_address is None else f", HTTP on http://{node.http_address}"
        out_console.print(f"node {node.node_id} is up on {node.address}{http}, process {process.pid}")
        starting.remove(node.node_id)

    starting = [process.plan.node_id for process in processes]

    def print_waiting() -> None:
        print_notice(f"waiting for node {', '.join(map(str, starting))}; see log.txt for its progress ...")

    timer = asyncio.get_running_loop().call_later(SLOW_NOTICE_DELAY_S, print_waiting)
    tasks = [asyncio.create_task(wait_ready(process)) for process in processes]
    all_ready: asyncio.Future[Any] = asyncio.gather(*tasks)
    try:
        await asyncio.wait([stop_requested, all_ready], return_when=asyncio.FIRST_COMPLETED)
        if not all_ready.done():
            return False
        all_ready.result()
        return True
    finally:
        timer.cancel()
        for task in tasks:
            task.cancel()


def _print_cluster_info(plan: ClusterPlan) -> None:
    out_console.print(f"The cluster is up: {plan.bootstrap}")
    if len(plan.nodes) > 1:
        out_console.print(f"To use it with other commands: export MOLDAU_BOOTSTRAP={plan.bootstrap}")
    defaults = plan.nodes[0].settings.topic_defaults
    out_console.print(
        f"Topics have {pluralize(plan.nodes[0].settings.default_replication_factor, 'replica')} and "
        f"min.insync.replicas={defaults.min_insync_replicas} by default."
    )
    if defaults.write_caching:
        out_console.print(
            "Records are acknowledged before fsync (write.caching): a power failure of all nodes can lose the latest "
            "ones."
        )
    out_console.print("Press Ctrl-C to stop it.")


async def _watch(processes: list[NodeProcess], stop_requested: "asyncio.Future[int]") -> None:
    """Prints a notice for each node that exits. Returns when a stop is requested or no node is running."""
    exits = {asyncio.create_task(process.wait()): process for process in processes}
    try:
        while exits and not stop_requested.done():
            await asyncio.wait([stop_requested, *exits], return_when=asyncio.FIRST_COMPLETED)
            for task, process in list(exits.items()):
                if task.done():
                    del exits[task]
                    _print_exit(process, task.result(), remaining=len(exits))
    finally:
        for task in exits:
            task.cancel()


def _print_exit(process: NodeProcess, code: int, remaining: int) -> None:
    node = process.plan
    others = f"{pluralize(remaining, 'node')} still running" if remaining else "no node is running"
    print_notice(
        f"node {node.node_id} {describe_exit(code)}, {others}: see {node.log_file}; restart it with "
        f"`moldau serve --config {node.settings_file}`"
    )


async def _stop(processes: list[NodeProcess]) -> None:
    """Sends SIGTERM to all nodes at the same time, and waits until they have exited."""

    async def stop(process: NodeProcess) -> None:
        if process.is_running:
            process.send_signal(signal.SIGTERM)
            await process.wait()
            out_console.print(f"node {process.plan.node_id} has stopped")

    await asyncio.gather(*(stop(process) for process in processes))
