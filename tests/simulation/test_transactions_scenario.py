"""The cluster scenario with transactions: no violations, and the same trace in another process.

The ablations of this scenario take too long for a test; `make soak` runs them.
"""

import os
import subprocess
import sys

from moldau.testing.simulation.scenarios.transactions import TransactionsScenario

SEED = 0
"""`make soak` runs 2,000."""


def test_transactions_in_a_cluster_under_faults_have_no_violations_and_replay_exactly() -> None:
    program = (
        "from moldau.testing.simulation.scenarios.transactions import TransactionsScenario\n"
        f"print(TransactionsScenario({SEED}).run().trace_hash)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": "1"}, stdout=subprocess.PIPE, text=True
    ) as replay:
        outcome = TransactionsScenario(SEED).run()
        replayed_hash = replay.communicate()[0].strip()
    assert outcome.violations == []
    for kind in ("committed", "aborted", "unknown"):
        assert outcome.counts[f"transactions {kind}"] > 0
    assert outcome.counts["committed reads"] > 0
    assert outcome.trace_hash == replayed_hash
