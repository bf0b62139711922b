"""Measures what each ack mode of RecordListener delivers how often, and prints one table.

The handlers run in processes of their own, on three nodes. Fails if a count contradicts what the mode promises.
"""

import argparse
import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from ack_modes.modes import MODES, Fault
from ack_modes.run import LEGEND, SETTINGS, Result, format_table, run_fault, run_node_kills
from support.broker_process_cluster import BrokerProcessCluster


async def run_all(nodes: BrokerProcessCluster, options: argparse.Namespace) -> list[Result]:
    modes = [MODES[name] for name in options.mode or MODES]
    times = {Fault.CONSUMER_KILLED: options.kills, Fault.REBALANCE: options.joins}
    results: list[Result] = []
    for fault in Fault:
        if options.fault and fault not in options.fault:
            continue
        print(f"running: {fault}", flush=True)
        if fault is Fault.NODE_KILLED:
            results += await run_node_kills(nodes, options.node_kills, modes)
        else:
            results += await run_fault(nodes.bootstrap, fault, times.get(fault, 0), modes)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.ack_modes", description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="how often the consumer of each mode is killed")
    parser.add_argument("--joins", type=int, default=5, help="how often a second consumer joins and leaves")
    parser.add_argument("--node-kills", type=int, default=6, help="how often a node is killed")
    parser.add_argument("--mode", action="append", choices=list(MODES), help="only this mode (may be repeated)")
    parser.add_argument("--fault", action="append", choices=list(Fault), help="only this fault (may be repeated)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, BrokerProcessCluster(Path(directory), settings=SETTINGS) as nodes:
        results = asyncio.run(run_all(nodes, options))
    print(f"\n{format_table(results)}\n{LEGEND}")
    failed = [(result, each) for result in results for each in result.violations()]
    for result, violation in failed:
        print(f"VIOLATION: {result.fault}, {result.mode.name}: {violation}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
