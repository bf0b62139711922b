"""Summaries of Spark's errors in one line."""

import pytest

from moldau.pipelines.definition import PipelineError
from moldau.pipelines.error_summary import summarize_error

JAVA = "\n\tat org.apache.spark.sql.Foo.bar(Foo.scala:1)\n\tat java.base/java.lang.Thread.run(Thread.java:1)\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: "
            "Task 0 in stage 1.0 failed 1 times (TID 3) (127.0.0.1 executor driver): "
            "org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero. Use `try_divide` instead. "
            "SQLSTATE: 22012" + JAVA,
            "Division by zero. Use `try_divide` instead.",
        ),
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: org.apache.spark.api.python.PythonException: "
            'Traceback (most recent call last):\n  File "x.py", line 1, in read\n'
            "moldau.spark.errors.DataLossError: orders-0: records 3 to 7 are gone; set failOnDataLoss=false\n" + JAVA,
            "orders-0: records 3 to 7 are gone; set failOnDataLoss=false",
        ),
        (
            '[STREAM_FAILED] x: Traceback (most recent call last):\n  File "x.py", line 1\n'
            "ZeroDivisionError: division by zero\n" + JAVA,
            "ZeroDivisionError: division by zero",
        ),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `order` cannot be found.\nVerify it. SQLSTATE: 42P01",
            "The table or view `order` cannot be found. Verify it.",
        ),
        ("\n  something else\nand more", "something else"),
        ("", "RuntimeError"),
    ],
)
def test_the_cause_is_summarized_in_one_line(text: str, sentence: str) -> None:
    assert summarize_error(RuntimeError(text)) == sentence


def test_a_pipeline_error_is_unchanged() -> None:
    assert summarize_error(PipelineError("sinks.table: no key; add key: [id]")) == "sinks.table: no key; add key: [id]"


def test_a_long_message_is_truncated() -> None:
    assert len(summarize_error(RuntimeError("x" * 10_000))) == 600


def test_sparks_description_of_the_query_is_removed() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: SparkSourceError: no response from the "
        "cluster at 127.0.0.1:9092. Check that a broker is running there\n=== Streaming Query ===\n"
        "Identifier: revenue: out [id = 1, runId = 2]\nCurrent Committed Offsets: {}"
    )
    assert summarize_error(RuntimeError(text)) == (
        "no response from the cluster at 127.0.0.1:9092. Check that a broker is running there"
    )


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'deltalake'", name="deltalake"),
        ModuleNotFoundError("No module named 'deltalake.fs'", name="deltalake.fs"),
        RuntimeError(
            "PythonException: Traceback (most recent call last):\n  File x\n"
            "ModuleNotFoundError: No module named 'deltalake'\n" + JAVA
        ),
    ],
)
def test_a_missing_module_is_named_with_the_install_command(error: Exception) -> None:
    assert summarize_error(error) == (
        "Pipelines run on Spark, but deltalake is not installed: pip install 'moldau[spark]'"
    )


def test_other_missing_modules_are_reported_unchanged() -> None:
    assert "mine" in summarize_error(ModuleNotFoundError("No module named 'mine'", name="mine"))
    assert "pip install" not in summarize_error(ModuleNotFoundError("No module named 'mine'", name="mine"))
