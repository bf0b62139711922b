"""The long proofs, of which `make test` runs a sample.

`make soak` runs all, `make soak ARGS="--only simulation"` one of them. Each result is written to docs/proof/ with its
command and commit.
"""

import argparse
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[1]
PROOFS = PROJECT / "docs" / "proof"
RESULT_LINES = re.compile(
    r"^\d+ (passed|failed|samples|seeds|runs|rows|kills|requests|leaders partitioned|s of full load|s, \d+ faults)\b"
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
    sample: str = "the same"
    """What `make test` runs of it."""


SIMULATION = ("-m", "moldau.testing.simulation")
FIRST_SEED = "1000"
PARALLEL = ("--jobs", "2")

GROUP_SAFEGUARDS = {
    "generation-check": "requests of any generation are accepted",
    "member-fencing": "commits of fenced members are accepted",
    "reply-before-durable": "responses leave before their records are durable",
    "tombstones": "deletions write no tombstones",
    "offsets-fsync": "fsync of the offsets topic does nothing",
}

CLUSTER_SAFEGUARDS = {
    "fsync-before-ack": "appended records count as durable",
    "unsynced-followers": "followers acknowledge records before fsync",
    "vote-before-save": "a vote is sent before it is on disk",
    "up-to-date-log": "voters ignore how long the candidate's log is",
    "pre-vote": "a follower that misses its leader starts a new epoch without pre-votes",
    "truncation": "a follower continues from its own log end and ignores diverging epochs",
    "maximal-in-sync": "a leader uses the proposed ISR before the controller has confirmed it",
    "partition-epoch": "the controller accepts ISR changes with a stale partition epoch",
    "broker-epoch": "a broker that registers again keeps its place in the ISR",
    "lease": "a leader acknowledges without a valid lease",
    "high-watermark": "consumers read up to the log end",
    "producers-on-followers": "followers keep no producer state",
    "group-load": "a coordinator serves before it has loaded its groups",
    "metadata-commit": "a metadata change is acknowledged before a majority has it",
}

TRANSACTION_SAFEGUARDS = {
    "transactions-in-snapshots": "producer snapshots have no open transactions",
    "transaction-before-durable": "the transaction coordinator responds before its records are durable",
    "stale-image": "the coordinator sends markers with an image that is older than its transactions",
    "all-markers": "a transaction is complete when one partition has its marker",
    "pending-offsets": "a group coordinator loads offsets of open transactions as committed ones",
    "require-stable": "OffsetFetch ignores require_stable and returns offsets from before an open transaction",
}

SCHEDULE_SAFEGUARDS = {
    "marker-before-commit": "markers are sent before the decision is committed",
    "transaction-epoch": "the producer epoch stays the same from transaction to transaction",
    "timeout-epoch": "a timeout does not fence the producer",
    "end-retry": "every EndTxn after the end counts as a repetition of the one that ended the transaction",
    "verification": "the coordinator confirms every transaction that a leader asks about",
    "verification-guard": "a verified batch is appended even if its transaction has ended meanwhile",
    "marker-epoch": "a marker ends a later transaction than its own",
    "repeated-marker": "a repeated marker is refused",
    "coordinator-epoch": "markers of earlier coordinators are accepted",
    "late-requests": "requests without TV2 are executed even if they were repeated on a newer connection",
    "unreplicated-markers": "the last stable offset passes markers that are not replicated",
    "last-stable-offset": "consumers with read_committed get the first record of an open transaction",
    "aborted-search": "Fetch returns only the aborted transactions that ended within the returned records",
}

MOLDAU_KILLS, KAFKA_KILLS = "tests/spark/test_stateful_kills.py", "tests/interop/test_stateful_kills_on_kafka.py"
NODES = "a node, the leader of an output partition, the coordinator of the query's transactions"
SPECULATION = "a standalone cluster of two workers with speculation"
STATEFUL_KILLS = [
    (
        "spark-kills-stateful",
        "on `local[2]` and three Moldau nodes",
        f"driver, Python workers, {NODES}",
        MOLDAU_KILLS,
        "local",
        "5 kills",
    ),
    (
        "spark-kills-standalone",
        f"on {SPECULATION} and three Moldau nodes",
        f"driver, Python workers, executor, {NODES}",
        MOLDAU_KILLS,
        "cluster",
        "none",
    ),
    (
        "spark-kills-kafka",
        "on `local[2]` and one node of Apache Kafka",
        "driver, Python workers, the node",
        KAFKA_KILLS,
        "local",
        "3 kills in `make interop`",
    ),
    (
        "spark-kills-kafka-standalone",
        f"on {SPECULATION} and one node of Apache Kafka",
        "driver, Python workers, executor, the node",
        KAFKA_KILLS,
        "cluster",
        "none",
    ),
]

PROOFS_ALL = [
    Proof(
        "simulation",
        "500 seeds of one node with crashes, torn writes and disk faults: no acknowledged record is "
        "lost, duplicated or "
        "out of order.",
        (*SIMULATION, "--scenario", "one-node", "--seeds", "500", "--start", FIRST_SEED),
        sample="10 seeds",
    ),
    Proof(
        "groups",
        "500 seeds of consumer groups under the same faults: no committed offset is lost or moved back, no partition "
        "has two owners in a generation, and every group becomes stable after the faults end.",
        (*SIMULATION, "--scenario", "groups", "--seeds", "500", "--start", FIRST_SEED),
        sample="8 seeds",
    ),
    *(
        Proof(
            f"ablation-{safeguard}",
            f"Ablation in groups: {what}. The checkers must notice.",
            (*SIMULATION, "--seeds", "50", "--start", FIRST_SEED, "--ablation", safeguard),
            must_fail=True,
            sample="up to 10 seeds",
        )
        for safeguard, what in GROUP_SAFEGUARDS.items()
    ),
    Proof(
        "ablation-fsync",
        "Ablation on one node: fsync does nothing. The checkers must notice.",
        (*SIMULATION, "--seeds", "50", "--start", FIRST_SEED, "--ablation", "fsync"),
        must_fail=True,
        sample="up to 10 seeds",
    ),
    Proof(
        "cluster",
        "2,000 seeds of clusters of three and five nodes, each with at least 1,000 operations and 20 faults of "
        "machines, disks, clocks and network: no acknowledged record is lost, duplicated or out of order, and no "
        "invariant is violated.",
        (*SIMULATION, "--scenario", "cluster", "--seeds", "2000", "--start", FIRST_SEED, *PARALLEL),
        sample="6 seeds",
    ),
    *(
        Proof(
            f"ablation-{safeguard}",
            f"Ablation in a cluster: {what}. The checkers must notice.",
            (*SIMULATION, "--seeds", "50", "--start", FIRST_SEED, "--ablation", safeguard),
            must_fail=True,
            sample="up to 10 seeds",
        )
        for safeguard, what in CLUSTER_SAFEGUARDS.items()
    ),
    Proof(
        "transactions",
        "2,000 seeds of the cluster scenario with transactions: producers with TV2 and TV1 that fence each other, "
        "copies from topic to topic, late requests. No record of an aborted or open transaction is read with "
        "read_committed; no transaction is torn, lost or duplicated; after the faults all transactions end, and "
        "committed offsets agree with the output.",
        (*SIMULATION, "--scenario", "transactions", "--seeds", "2000", "--start", FIRST_SEED, *PARALLEL),
        sample="1 seed",
    ),
    *(
        Proof(
            f"ablation-{safeguard}",
            f"Ablation in a cluster with transactions: {what}. The checkers must notice.",
            (*SIMULATION, "--seeds", "50", "--start", FIRST_SEED, "--ablation", safeguard, *PARALLEL),
            must_fail=True,
            sample="none",
        )
        for safeguard, what in TRANSACTION_SAFEGUARDS.items()
    ),
    Proof(
        "transaction-schedules",
        "10,000 random schedules of coordinator, leaders and producers, with messages that are late, duplicated, "
        "reordered and lost (KIP-890), timeouts and failovers: the same checks, and no transaction hangs.",
        (*SIMULATION, "--scenario", "transaction-schedules", "--seeds", "10000", "--start", FIRST_SEED, *PARALLEL),
        sample="50 schedules",
    ),
    *(
        Proof(
            f"ablation-{safeguard}",
            f"Ablation in schedules of transactions: {what}. The checkers must notice.",
            (*SIMULATION, "--seeds", "300", "--start", FIRST_SEED, "--ablation", safeguard),
            must_fail=True,
            sample="up to 300 schedules",
        )
        for safeguard, what in SCHEDULE_SAFEGUARDS.items()
    ),
    Proof(
        "replay-cluster",
        "100 runs of one cluster seed give one trace hash.",
        (*SIMULATION, "--scenario", "cluster", "--replay", FIRST_SEED, "--times", "100"),
        sample="2 runs, and 2 with other hash seeds",
    ),
    Proof(
        "leader-kills",
        "SIGKILL of a partition leader under load, 50 times, three real nodes with default settings: no acknowledged "
        "record is lost, duplicated or out of order. The page shows how long writes paused.",
        ("-m", "pytest", "tests/cluster/test_leader_kills.py"),
        {"MOLDAU_LEADER_KILLS": "50"},
        sample="3 kills",
    ),
    Proof(
        "silent-cuts",
        "A partition leader silently partitioned under load, 25 times from the other nodes and 25 times also from its "
        "clients: no acknowledged record is lost, duplicated or out of order. The page shows how long writes paused. "
        "In the second case the producer has request.timeout.ms=2000, socket.timeout.ms=3000 and "
        "topic.metadata.refresh.interval.ms=1000; with its defaults it would wait a minute for the silent leader.",
        ("-m", "pytest", "tests/chaos/test_network_partition.py", "-k", "silently"),
        {"MOLDAU_SILENT_CUTS": "25"},
        sample="none: needs root",
    ),
    Proof(
        "full-load",
        "30 minutes of full load on three real nodes without faults: no election and no ISR shrink.",
        ("-m", "pytest", "tests/cluster/test_full_load.py"),
        {"MOLDAU_LOAD_SECONDS": "1800"},
        sample="none: other tests would disturb it",
    ),
    Proof(
        "chaos",
        "1,000 seconds of every kind of fault on real processes in network namespaces, with real clients, some of "
        "which use transactions: no record is lost, duplicated or out of order, no transaction is torn, and readers "
        "with read_committed get every committed record once and no other.",
        ("-m", "tests.chaos", "--seconds", "1000"),
        keeps_all_output=True,
        sample="none: needs root",
    ),
    Proof(
        "ack-modes",
        "Each ack mode of `RecordListener` with handlers that fail or stop the process, with consumers that are killed "
        "with SIGKILL, on three real nodes that are killed, too: no record is lost, except the record or batch in the "
        "handler with at most once, and records come again only within the limits in the table.",
        ("-m", "tests.ack_modes", "--kills", "20", "--joins", "5", "--node-kills", "6"),
        keeps_all_output=True,
        sample="1 kill of each consumer, 2 of nodes",
    ),
    Proof(
        "group-lag",
        "Lag of groups in records and in seconds, and their rates, under a known load on three real nodes, over four "
        "failovers of partition leader and coordinator: right to within one second for a stalled, a slow and a fast "
        "group, and for a group with read_committed behind an open transaction.",
        ("-m", "pytest", "-s", "-m", "slow", "tests/cluster/test_group_lag.py"),
        sample="one failover",
    ),
    Proof(
        "exactly-once",
        "Kafka Streams with exactly_once_v2, Kafka Connect's exactly-once source, and copies of a topic with Java (TV2 "
        "and TV1), librdkafka and Moldau's client, on three and five real nodes: the application and nodes are killed "
        "with SIGKILL 20 times each, and the committed output has every record exactly once.",
        ("-m", "pytest", "tests/interop/applications/test_exactly_once.py", "tests/cluster/test_exactly_once_kills.py"),
        {"MOLDAU_APPLICATION_KILLS": "20", "MOLDAU_EXACTLY_ONCE_KILLS": "20"},
        sample="6 kills; 3 kills of each application in `make interop`",
    ),
    Proof(
        "replay",
        "100 runs of one seed of one node give one trace hash.",
        (*SIMULATION, "--scenario", "one-node", "--replay", FIRST_SEED, "--times", "100"),
        sample="a few runs, and 2 with other hash seeds",
    ),
    Proof(
        "replay-groups",
        "100 runs of one seed of groups give one trace hash.",
        (*SIMULATION, "--scenario", "groups", "--replay", FIRST_SEED, "--times", "100"),
        sample="a few runs, and 2 with other hash seeds",
    ),
    Proof(
        "kill-nine",
        "SIGKILL of a real process 100 times while it acknowledges acks=all: every acknowledged record exists once, in "
        "order.",
        ("-m", "pytest", "tests/crash/test_kill_nine.py"),
        {"MOLDAU_KILLS": "100"},
        sample="20 kills",
    ),
    Proof(
        "outbox-kills",
        "16 writers with random rollbacks, savepoints and long transactions, on each of two versions of Postgres. The "
        "relay of the outbox is killed with SIGKILL 50 times, and in another run Postgres, the node and then both are "
        "killed: consumers with read_committed get every committed event exactly once, in the order of its key.",
        ("-m", "pytest", "-s", "tests/outbox/test_kills.py"),
        {"MOLDAU_OUTBOX_KILLS": "50"},
        sample="3 kills",
    ),
    *(
        Proof(
            f"postgres-clients-{version}",
            "The tests of clients and of requests on the wire, with a node that keeps everything in Postgres "
            f"{version}, except tests of segments.",
            ("-m", "pytest", "tests/clients", "tests/wire", "-m", "not slow", "-n", "2", "--dist", "loadfile"),
            {"MOLDAU_TEST_STORE": "postgres", "MOLDAU_TEST_POSTGRES": version},
            sample="the stories of groups, SQL, and kcat",
        )
        for version in ("15", "18")
    ),
    Proof(
        "postgres-kills",
        "A node with its state in Postgres under load from acks=all producers, a transactional producer and committed "
        "offsets: SIGKILL of the node 100 times and of Postgres 50 times, and the network between them cut or stalled "
        "50 times, half of each with the oldest and half with the newest Postgres on the machine. Nothing acknowledged "
        "is lost, doubled or out of order, every transaction is there completely or not at all, and after a fault of "
        "Postgres or the network the node goes on by itself.",
        ("-m", "pytest", "--numprocesses", "2", "tests/crash/test_postgres_kill_nine.py"),
        {"MOLDAU_POSTGRES_NODE_KILLS": "50", "MOLDAU_POSTGRES_KILLS": "25", "MOLDAU_POSTGRES_CUTS": "25"},
        sample="10 kills of the node, 6 of Postgres, 8 faults of the network",
    ),
    Proof(
        "spark-kills",
        "Streaming queries from a topic to a topic, Parquet and Delta while driver, worker and broker are killed with "
        "SIGKILL in turn, 50 times: Parquet, Delta and, for readers with read_committed, the topic have every row "
        "exactly once; every aborted row in the topic belongs to a replayed micro-batch or a retried task.",
        ("-m", "pytest", "-s", "tests/spark/test_kills.py"),
        {"MOLDAU_SPARK_KILLS": "50"},
        sample="3 kills",
    ),
    *(
        Proof(
            name,
            f"A stateful query {where}: {victims} are killed with SIGKILL in turn, 50 times. For readers with "
            "read_committed, the output topic has every row exactly once, with a running count and sum (the query's "
            "state) that include every earlier row of its key exactly once; every aborted row belongs to a replayed "
            "micro-batch or to another attempt of its task.",
            ("-m", "pytest", "-s", file, "-k", master),
            {"MOLDAU_SPARK_KILLS": "50"},
            sample=sample,
        )
        for name, where, victims, file, master, sample in STATEFUL_KILLS
    ),
    Proof(
        "pipeline-kills",
        "A pipeline that sums into a topic (update) and a Delta table (upsert), killed with SIGKILL 20 times, every "
        "other time only its Python process: the table counts every record once, and so does every sum in the topic, "
        "where no sum is committed twice.",
        ("-m", "pytest", "-s", "tests/spark/test_pipeline_run_kills.py"),
        {"MOLDAU_SPARK_KILLS": "20"},
        sample="none",
    ),
    Proof(
        "power-cuts",
        "Power cuts at every step of a scripted sequence of appends, rolls, truncation, deletion and compaction: no "
        "durable record is lost.",
        ("-m", "pytest", "tests/unit/logs/files/test_disk_faults.py", "-k", "power_failure"),
        sample="2 of 10 parts",
    ),
    Proof(
        "compaction",
        "Random keys, tombstones, codecs, plain and idempotent producers and DeleteRecords, the same for Moldau and "
        "Apache Kafka: after compaction librdkafka, kafka-python, aiokafka, the Java consumer and Moldau's consumer "
        "read the same records from both, with any fetch size. In a cluster whose leaders are killed with records that "
        "no other replica has, all replicas have the same records after truncation and compaction.",
        ("-m", "pytest", "tests/interop/test_compaction_beside_kafka.py", "tests/cluster/test_compacted_replicas.py"),
        {"MOLDAU_COMPACTION_SEEDS": "35", "MOLDAU_COMPACTION_KILLS": "25"},
        sample="2 kills; two seeds in `make interop`",
    ),
    Proof(
        "group-stories",
        "The transcripts of the pure group state machine (tests/transcripts) match what Moldau and "
        "Apache Kafka 4.3 do on "
        "the wire, in real time and with full timeouts.",
        ("-m", "pytest", "tests/interop/test_group_stories.py"),
        sample="the pure state machine only",
    ),
    Proof(
        "prometheus",
        "A real Prometheus scrapes three nodes with the configuration of `moldau generate prometheus`, of which only "
        "the durations are shortened (scrapes every second, alerts after two seconds): the alerts fire for a killed "
        "node, a stalled group and a full disk, and stop after recovery; every query of the dashboard of `moldau "
        "generate grafana` has data.",
        ("-m", "pytest", "-s", "tests/observe/test_prometheus.py"),
        keeps_all_output=True,
        sample="none: needs Prometheus and root",
    ),
    Proof(
        "http-fuzz",
        "schemathesis sends up to 60 valid and 60 invalid requests, with invented and again with existing objects, to "
        "every operation of the OpenAPI documents: no status 5xx other than 503 and 504, and every response is as "
        "documented.",
        ("-m", "pytest", "-s", "tests/http/test_http_schema_fuzz.py"),
        {"MOLDAU_HTTP_FUZZ": "60"},
        sample="8 requests instead of 60",
    ),
    Proof(
        "fuzz",
        "Every API and version decoder on random, truncated and mutated bytes, with limited memory: the only "
        "error is a decoding error.",
        ("-m", "pytest", "tests/hostile/test_fuzz_decoders.py"),
        {"MOLDAU_FUZZ": "4000"},
        sample="40 inputs per decoder",
    ),
]


SUMMARY_HEAD = [
    "# Proofs",
    "",
    "`make soak` runs these long tests in full and writes one page for each, with command, commit and output.",
    "`make test` runs a sample. A result holds for the commit that its row names.",
    "",
    "| proof | claim | sample in `make test` | result | commit |",
    "|---|---|---|---|---|",
]
SUMMARY_NOTES = [
    "An ablation removes one safeguard from the code under test; it holds if the simulator finds a violation",
    "within 50 seeds, or 300 schedules.",
    "",
    "Limits: `kill -9` does not clear the page cache, so only the simulator and the disk tests prove that fsync",
    "comes before an acknowledgement. The simulator's workloads compact only the offsets topic, and do not use",
    "retention, DeleteRecords, fetch sessions, offset expiry or pattern subscriptions; unit tests cover those.",
    "",
    "[client-suites](client-suites.md) lists the transaction tests of other clients that were run by hand.",
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=[proof.name for proof in PROOFS_ALL], help="may be given several times"
    )
    parser.add_argument("--summary", action="store_true", help="only rewrite docs/proof/README.md from the pages")
    options = parser.parse_args()
    if options.summary:
        write_summary()
        return 0
    chosen = [proof for proof in PROOFS_ALL if options.only is None or proof.name in options.only]
    failed = [proof.name for proof in chosen if not run_proof(proof)]
    write_summary()
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
    print(f"{proof.name}: {'holds' if held else 'DOES NOT HOLD'} after {seconds:.0f} s", *shown, sep="\n  ", flush=True)
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
        f"- Command: `{variables}python {shlex.join(proof.command)}`" + (" (must fail)" if proof.must_fail else ""),
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


def write_summary() -> None:
    """Writes the table of all proofs with the claims, results and commits of their pages."""
    rows = [
        f"| [{proof.name}]({proof.name}.md) | {page.claim} | {proof.sample} | {page.result} | {page.commit} |"
        for proof in PROOFS_ALL
        if (page := read_page(proof)) is not None
    ]
    missing = [proof.name for proof in PROOFS_ALL if read_page(proof) is None]
    lines = [*SUMMARY_HEAD, *rows, "", *SUMMARY_NOTES]
    if missing:
        lines += ["", f"No result yet: {', '.join(f'`{name}`' for name in missing)} (see ../not_done.md)."]
    (PROOFS / "README.md").write_text("\n".join([*lines, ""]))


class ProofPage(NamedTuple):
    claim: str
    """What was proven then. The proof may claim more now."""
    result: str
    commit: str


def read_page(proof: Proof) -> ProofPage | None:
    """Returns what a proof's page states; None if there is no page."""
    page = PROOFS / f"{proof.name}.md"
    if not page.exists():
        return None
    text = page.read_text()
    result, commit_of_page = (re.search(rf"^- {name}: (.*)$", text, flags=re.M) for name in ("Result", "Commit"))
    assert result is not None
    assert commit_of_page is not None
    return ProofPage(text.splitlines()[2], result[1], commit_of_page[1])


def commit() -> str:
    changed = " with changes" if git("status", "--porcelain", "src") else ""
    return git("rev-parse", "--short", "HEAD") + changed


def git(*arguments: str) -> str:
    run = subprocess.run(["git", *arguments], cwd=PROJECT, capture_output=True, text=True, check=False)
    return run.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
