"""`moldau up`: a cluster on this machine, a process for each node, until it is told to stop."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer

from moldau.cli.cluster_access import CommandError, out_console, pluralize, print_error, print_notice
from moldau.cli.data_lock import data_lock
from moldau.cli.parameters import parse_name_values, validate_text
from moldau.cli.signals import stop_signal
from moldau.cli.up.plan import ClusterPlan, check_host, make_plan, write_plan
from moldau.cli.up.processes import NodeProcess, describe_exit, kill_all
from moldau.errors import StorageError

SLOW_NOTICE_DELAY_S = 15.0
NODES_MAX = 100
KILLED = 137


def up(
    nodes: Annotated[
        int, typer.Option("--nodes", "-n", min=1, max=NODES_MAX, metavar="NUMBER", help="How many nodes.")
    ] = 3,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65_535,
            metavar="PORT",
            help="Of the first node; the others have the ports after it. 9092 by default.",
        ),
    ] = None,
    data_dir: Annotated[
        Path,
        typer.Option(
            "--data-dir",
            metavar="DIR",
            help="Where the nodes keep their data, each in a directory of its own.",
        ),
    ] = Path("moldau-cluster"),
    sync: Annotated[
        bool,
        typer.Option("--sync", help="Acknowledge nothing that a power cut of all nodes could take back."),
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            metavar="NAME=VALUE",
            callback=validate_text,
            help="A setting of all nodes; may be repeated. `moldau settings` shows them.",
        ),
    ] = None,
) -> None:
    """Run a cluster on this machine until it is told to stop (Ctrl-C, SIGTERM).

    Node 1 listens on the port given and keeps its data in DIR/node-1, with its log lines in log.txt and its process id
    in pid; and so on. A node that dies is not started again, so that you can see what the others do.

    moldau up --nodes 3 --port 9092 --data-dir ./cluster
    """
    try:
        given = parse_name_values(settings or [], "--set")
        with data_lock(str(data_dir)):
            plan = make_plan(data_dir, nodes, port, given, write_caching=not sync)
            for note in check_host(plan):
                print_notice(note)
            write_plan(data_dir, plan)
            code = asyncio.run(_run(plan))
    except (CommandError, StorageError) as error:
        print_error(error)
        raise typer.Exit(1) from None
    except OSError as error:
        print_error(CommandError(f"{error.filename or data_dir}: {error.strerror or error}"))
        raise typer.Exit(1) from None
    raise typer.Exit(code)


async def _run(plan: ClusterPlan) -> int:
    processes = [NodeProcess(node) for node in plan.nodes]
    try:
        with stop_signal() as asked:
            try:
                for process in processes:
                    await process.start()
                if await _wait_all_ready(processes, asked):
                    _print_cluster_info(plan)
                    await _watch(processes, asked)
            finally:
                is_stopped = asked.done() and not asked.cancelled()
                if is_stopped:
                    out_console.print("Stopping. Ctrl-C again kills what has not stopped yet.")
                await _stop(processes)
    except asyncio.CancelledError:
        # A second signal: whoever sent it does not want to wait.
        print_notice("Nodes that had not stopped are killed.")
        return KILLED
    finally:
        await kill_all(processes)
    return 0 if is_stopped else 1


async def _wait_all_ready(processes: list[NodeProcess], asked: "asyncio.Future[int]") -> bool:
    """False where it is told to stop before; raises CommandError where a node ends instead."""

    async def tell(process: NodeProcess) -> None:
        node = process.plan
        if not await process.wait_ready():
            raise CommandError(f"Node {node.node_id} could not be started: {process.last_log_line()}")
        out_console.print(f"node {node.node_id} is up on {node.address}, process {process.pid}")
        waited_for.remove(node.node_id)

    waited_for = [process.plan.node_id for process in processes]

    def tell_slow() -> None:
        numbers = ", ".join(map(str, waited_for))
        print_notice(f"waiting for node {numbers}: its log.txt says what it does ...")

    timer = asyncio.get_running_loop().call_later(SLOW_NOTICE_DELAY_S, tell_slow)
    telling = [asyncio.create_task(tell(process)) for process in processes]
    all_told: asyncio.Future[Any] = asyncio.gather(*telling)
    try:
        await asyncio.wait([asked, all_told], return_when=asyncio.FIRST_COMPLETED)
        if not all_told.done():
            return False
        all_told.result()
        return True
    finally:
        timer.cancel()
        for task in telling:
            task.cancel()


def _print_cluster_info(plan: ClusterPlan) -> None:
    out_console.print(f"The cluster is up: {plan.bootstrap}")
    if len(plan.nodes) > 1:
        out_console.print(
            f"So that commands find it whichever node dies: export MOLDAU_BOOTSTRAP={plan.bootstrap}"
        )
    defaults = plan.nodes[0].settings.topic_defaults
    out_console.print(
        f"Topics get {pluralize(plan.nodes[0].settings.default_replication_factor, 'replica')}, of which "
        f"{defaults.min_insync_replicas} must have a record before it is acknowledged."
    )
    if defaults.write_caching:
        out_console.print(
            "Records are acknowledged when the nodes have them, before they are on disk (write.caching). With --sync "
            "they are safe from a power cut too."
        )
    out_console.print("Ctrl-C stops it.")


async def _watch(processes: list[NodeProcess], asked: "asyncio.Future[int]") -> None:
    """Tells of each node that ends; returns when it is told to stop, or no node is left."""
    ends = {asyncio.create_task(process.wait()): process for process in processes}
    try:
        while ends and not asked.done():
            await asyncio.wait([asked, *ends], return_when=asyncio.FIRST_COMPLETED)
            for task, process in list(ends.items()):
                if task.done():
                    del ends[task]
                    _print_exit(process, task.result(), left=len(ends))
    finally:
        for task in ends:
            task.cancel()


def _print_exit(process: NodeProcess, code: int, left: int) -> None:
    node = process.plan
    others = f"{pluralize(left, 'other')} left" if left else "no node is left"
    print_notice(
        f"node {node.node_id} {describe_exit(code)}, {others}: see {node.log_file}; "
        f"`moldau serve --config {node.settings_file}` starts it again"
    )


async def _stop(processes: list[NodeProcess]) -> None:
    """All at once: each hands over what it leads to those that stay longer."""

    async def stop(process: NodeProcess) -> None:
        if process.is_running:
            process.stop()
            await process.wait()
            out_console.print(f"node {process.plan.node_id} has stopped")

    await asyncio.gather(*(stop(process) for process in processes))
