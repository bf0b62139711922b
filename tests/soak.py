"""The long proofs, of which `make test` runs a sample.

`make soak` runs all, `make soak ARGS="--only simulation"` one of them. Each result is written to docs/proof/ with its
command and commit.
"""

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

PROJECT = Path(__file__).parents[1]
PROOFS = PROJECT / "docs" / "proof"
RESULT_LINES = re.compile(
    r"^\d+ (passed|failed|seeds|runs|rows|kills|leaders partitioned|s of full load|s, \d+ faults)\b"
    r"|^at least | failed:$|trace [0-9a-f]"
)


@dataclass(frozen=True)
class Proof:
    name: str
    claim: str
    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    must_fail: bool = False
    """For ablations: the checker must find a violation."""
    keeps_all_output: bool = False
    """Whether to keep everything after the first empty line, which is a table."""


SIMULATION = ("-m", "moldau.testing.simulation")
FIRST_SEED = "1000"
PARALLEL = ("--jobs", "2")

GROUP_SAFEGUARDS = {
    "generation-check": "members of another generation are believed",
    "member-fencing": "a commit is believed whoever sends it",
    "reply-before-durable": "answers leave before their records are safe",
    "tombstones": "what was deleted is not marked as deleted",
    "offsets-fsync": "syncs of the offsets topic do nothing",
}

CLUSTER_SAFEGUARDS = {
    "fsync-before-ack": "what is appended counts as safe",
    "unsynced-followers": "a follower vouches for what it has not synced",
    "vote-before-save": "a vote is given before it is on disk",
    "up-to-date-log": "a vote is given to whoever asks first",
    "pre-vote": "a node that misses its leader begins a new epoch without asking",
    "truncation": "a follower goes on from its own end, whatever its leader says of epochs",
    "maximal-in-sync": "a leader goes by the in-sync set that it wants",
    "partition-epoch": "an in-sync set is changed whatever state the change was thought up on",
    "broker-epoch": "a broker that registers anew is believed to have all that it had",
    "lease": "a leader acknowledges without a lease",
    "high-watermark": "consumers see all there is",
    "producers-on-followers": "a follower does not remember what producers have written last",
    "group-load": "a coordinator serves before it has read its groups",
    "metadata-commit": "a change of metadata is answered when the leader alone has it",
}

PROOFS_ALL = [
    Proof(
        "simulation",
        "500 seeds, each with crashes, torn writes and disk faults: nothing acknowledged is lost, nothing is "
        "there twice or out of order.",
        (*SIMULATION, "--scenario", "one-node", "--seeds", "500", "--start", FIRST_SEED),
    ),
    Proof(
        "groups",
        "500 seeds of consumer groups under the same faults: no committed offset is lost or moved back, no partition "
        "is owned twice in a generation, every group settles when the faults end.",
        (*SIMULATION, "--scenario", "groups", "--seeds", "500", "--start", FIRST_SEED),
    ),
    *(
        Proof(
            f"ablation-{safeguard}",
            f"Groups without a safeguard ({what}): the checker catches it.",
            (*SIMULATION, "--seeds", "50", "--start", FIRST_SEED, "--ablation", safeguard),
            must_fail=True,
        )
        for safeguard, what in GROUP_SAFEGUARDS.items()
    ),
    Proof(
        "ablation-fsync",
        "The same with a disk whose syncs do nothing: the checker catches it.",
        (*SIMULATION, "--seeds", "50", "--start", FIRST_SEED, "--ablation", "fsync"),
        must_fail=True,
    ),
    Proof(
        "cluster",
        "2,000 seeds of clusters of three and five nodes, each of at least 1,000 operations and 20 faults of machines, "
        "disks, clocks and the network: nothing acknowledged is lost, doubled or out of order, and no invariant is "
        "broken.",
        (*SIMULATION, "--scenario", "cluster", "--seeds", "2000", "--start", FIRST_SEED, *PARALLEL),
    ),
    *(
        Proof(
            f"ablation-{safeguard}",
            f"A cluster without a safeguard ({what}): the simulator catches it.",
            (*SIMULATION, "--seeds", "50", "--start", FIRST_SEED, "--ablation", safeguard),
            must_fail=True,
        )
        for safeguard, what in CLUSTER_SAFEGUARDS.items()
    ),
    Proof(
        "replay-cluster",
        "One seed of a cluster, 100 runs: one trace hash.",
        (*SIMULATION, "--scenario", "cluster", "--replay", FIRST_SEED, "--times", "100"),
    ),
    Proof(
        "leader-kills",
        "A leader of three real nodes killed with SIGKILL under load, 50 times, all settings at their defaults: "
        "nothing acknowledged is lost, doubled or out of order; how long writes paused is shown.",
        ("-m", "pytest", "tests/cluster/test_leader_kills.py"),
        {"MOLDAU_LEADER_KILLS": "50"},
    ),
    Proof(
        "silent-cuts",
        "A leader of three real nodes cut off silently under load, 25 times from the other nodes and 25 times from its "
        "clients too: nothing acknowledged is lost, doubled or out of order; how long writes paused is shown. Where "
        "clients are cut off the producer has request.timeout.ms=2000, socket.timeout.ms=3000 and "
        "topic.metadata.refresh.interval.ms=1000: by its defaults it would wait a minute for the silent leader.",
        ("-m", "pytest", "tests/chaos/test_network_partition.py", "-k", "silently"),
        {"MOLDAU_SILENT_CUTS": "25"},
    ),
    Proof(
        "full-load",
        "30 minutes of full load on three real nodes, without a fault: no election, no in-sync set that shrinks.",
        ("-m", "pytest", "tests/cluster/test_full_load.py"),
        {"MOLDAU_LOAD_SECONDS": "1800"},
    ),
    Proof(
        "chaos",
        "1,000 seconds of every kind of fault on real processes in network namespaces, with real clients: no anomaly.",
        ("-m", "tests.chaos", "--seconds", "1000"),
        keeps_all_output=True,
    ),
    Proof(
        "replay",
        "One seed, 100 runs: one trace hash.",
        (*SIMULATION, "--scenario", "one-node", "--replay", FIRST_SEED, "--times", "100"),
    ),
    Proof(
        "replay-groups",
        "One seed of groups, 100 runs: one trace hash.",
        (*SIMULATION, "--scenario", "groups", "--replay", FIRST_SEED, "--times", "100"),
    ),
    Proof(
        "kill-nine",
        "A real process killed with SIGKILL 100 times in the middle of acks=all production: every "
        "acknowledged record is there, once, in order.",
        ("-m", "pytest", "tests/crash/test_kill_nine.py"),
        {"MOLDAU_KILLS": "100"},
    ),
    Proof(
        "spark-kills",
        "Streaming queries from a topic to a topic, Parquet and Delta while driver, worker and broker are killed with "
        "SIGKILL in turn, 20 times: no row is lost; in the topic every duplicate belongs to a batch that was begun "
        "again; in Parquet and Delta there is none.",
        ("-m", "pytest", "-s", "tests/spark/test_kills.py"),
        {"MOLDAU_SPARK_KILLS": "20"},
    ),
    Proof(
        "pipeline-kills",
        "A pipeline that sums into a topic (update) and a Delta table (upsert), killed with SIGKILL 20 times, every "
        "other time its Python only: the table has every record once, and every sum in the topic is that of records "
        "counted once.",
        ("-m", "pytest", "-s", "tests/spark/test_pipeline_run_kills.py"),
        {"MOLDAU_SPARK_KILLS": "20"},
    ),
    Proof(
        "power-cuts",
        "Power cuts at every step of a scripted life of a log, with appends, rolls, truncation, deletion and "
        "compaction: nothing that was promised is lost.",
        ("-m", "pytest", "tests/unit/logs/files/test_faults.py", "-k", "power_cuts"),
    ),
    Proof(
        "group-stories",
        "What the pure machine tells of groups (tests/transcripts) is what Moldau and Apache Kafka 4.3 do over "
        "the wire, in real time and with every timeout in full.",
        ("-m", "pytest", "tests/interop/test_group_stories.py"),
    ),
    Proof(
        "fuzz",
        "Every API and version decoder on random, truncated and mutated bytes, memory capped: only a decoding "
        "error ever comes out.",
        ("-m", "pytest", "tests/hostile/test_fuzz_decoders.py"),
        {"MOLDAU_FUZZ": "4000"},
    ),
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--only",
        action="append",
        choices=[proof.name for proof in PROOFS_ALL],
        help="may be given several times",
    )
    options = parser.parse_args()
    chosen = [proof for proof in PROOFS_ALL if options.only is None or proof.name in options.only]
    failed = [proof.name for proof in chosen if not run_proof(proof)]
    if failed:
        print(f"not proven: {', '.join(failed)}")
    return 1 if failed else 0


def run_proof(proof: Proof) -> bool:
    print(f"{proof.name}: {proof.claim}", flush=True)
    began = time.monotonic()
    run = subprocess.run(
        [sys.executable, *proof.command],
        cwd=PROJECT,
        env={**os.environ, **proof.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - began
    held = (run.returncode != 0) == proof.must_fail
    lines = run.stdout.replace("\r", "\n").splitlines()
    shown = lines[lines.index("") + 1 :] if proof.keeps_all_output and "" in lines else result_lines(lines)
    print(
        f"{proof.name}: {'holds' if held else 'DOES NOT HOLD'} after {seconds:.0f} s",
        *shown,
        sep="\n  ",
        flush=True,
    )
    if not held:
        print(run.stdout[-4000:], run.stderr[-4000:], flush=True)
    write_proof(proof, held, seconds, shown)
    return held


def result_lines(lines: list[str]) -> list[str]:
    """Returns the summary lines, and the name and first error of each failure."""
    told = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if RESULT_LINES.search(line) or before.endswith(" failed:")
    ]
    return told if len(told) <= 3 else [*told[:2], told[-1]]


def write_proof(proof: Proof, held: bool, seconds: float, shown: list[str]) -> None:
    variables = "".join(f"{name}={value} " for name, value in proof.environment.items())
    lines = [
        f"# {proof.name}",
        "",
        proof.claim,
        "",
        f"- Result: {'holds' if held else 'does not hold'}",
        f"- Command: `{variables}python {' '.join(proof.command)}`"
        + (" (must fail)" if proof.must_fail else ""),
        f"- Commit: {commit()}",
        f"- Took {seconds:.0f} s on {os.cpu_count()} cores, Python {platform.python_version()}",
        "",
        "```",
        *shown,
        "```",
        "",
    ]
    PROOFS.mkdir(parents=True, exist_ok=True)
    (PROOFS / f"{proof.name}.md").write_text("\n".join(lines))


def commit() -> str:
    changed = " with changes" if git("status", "--porcelain", "src") else ""
    return git("rev-parse", "--short", "HEAD") + changed


def git(*arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
    return run.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
