"""Parts of a pipeline that need no Spark: variables, names, dependencies, owners of checkpoints."""

import json
from pathlib import Path

import pytest

from moldau.client.record import ConsumerRecord
from moldau.pipelines.definition import PipelineDefinition, PipelineError, Sink, SinkKind, Source, View
from moldau.pipelines.error_summary import summarize_error
from moldau.pipelines.planner.ownership import (
    IDENTITY_FILE,
    OWNER_FILE,
    QueryIdentity,
    check_owner,
    claim_checkpoint,
    claim_directory,
    identity_of,
    sql_hash,
)
from moldau.pipelines.records.redrive import OriginalRecord, original_record
from moldau.pipelines.spec.dependencies import dependencies_of
from moldau.pipelines.spec.section import is_secret
from moldau.pipelines.spec.values import is_slug, parse_interval, parse_starting, parse_time
from moldau.pipelines.spec.yaml_file import substitute_variables

ORDERS = Source("orders", ("orders",))
CUSTOMERS = Source("customers", ("customers",))


def pipeline(*views: View, name: str = "p") -> PipelineDefinition:
    return PipelineDefinition(name, (ORDERS, CUSTOMERS), views, (Sink("out", SinkKind.CONSOLE),))


# Environment variables


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${HOST}:${PORT:-9092}", "here:9092"),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${NONE:-a:-b}", "a:-b"),
        ("$${HOST} $5 $HOST", "${HOST} $5 $HOST"),
    ],
)
def test_variables_are_substituted(text: str, expected: str) -> None:
    assert substitute_variables(text, {"HOST": "here", "EMPTY": ""}) == expected


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(ValueError, match="NONE is not set; set it, or write"):
        substitute_variables("${NONE}", {})
    with pytest.raises(ValueError, match="is not"):
        substitute_variables("${not a name}", {})


@pytest.mark.parametrize("key", ["sasl.password", "ssl.keystore.password", "sasl.jaas.config", "client_secret"])
def test_secret_settings_are_recognised(key: str) -> None:
    assert is_secret(key)
    assert not is_secret("security.protocol")


# Values


def test_durations_become_spark_intervals() -> None:
    assert [parse_interval(each) for each in ("1 second", "500ms", "10 MINUTES", "2h")] == [
        "1 second",
        "500 milliseconds",
        "10 minutes",
        "2 hours",
    ]
    for wrong in ("", "soon", "1", "-1 s", "1 fortnight"):
        with pytest.raises(ValueError, match="is not a duration"):
            parse_interval(wrong)


@pytest.mark.parametrize("name", ["", "a.b", "_a", "-a", "a b", "a/b", "ä", "x" * 129])
def test_an_invalid_pipeline_name_is_refused_before_a_file_is_written(name: str) -> None:
    from moldau.pipelines.runtime.state_directory import StateDirectory

    assert not is_slug(name)
    with pytest.raises(PipelineError, match="use letters, digits, - and _"):
        StateDirectory.of(Path(), name)


def test_a_time_without_a_zone_is_in_utc() -> None:
    assert parse_time("2024-05-01T00:00:00Z") == parse_time("2024-05-01") == parse_time("2024-05-01T02:00:00+02:00")
    assert parse_starting("Latest") == "latest"
    with pytest.raises(ValueError, match="nor a time"):
        parse_starting("yesterday")


# Dependencies


def test_dependencies_of_a_view_are_transitive() -> None:
    large = View("large", "SELECT * FROM Orders WHERE n > 1")
    other = View("other", "SELECT * FROM customers")
    total = View("total", "SELECT sum(n) AS orders FROM large")
    one = pipeline(large, other, total)
    assert [each.name for each in dependencies_of(one, "total")] == ["orders", "large", "total"]
    assert [each.name for each in dependencies_of(one, "other")] == ["customers", "other"]
    assert [each.name for each in dependencies_of(one, "orders")] == ["orders"]


def test_a_view_does_not_depend_on_later_views() -> None:
    one = pipeline(View("a", "SELECT b FROM orders"), View("b", "SELECT * FROM a"))
    assert [each.name for each in dependencies_of(one, "a")] == ["orders", "a"]


def test_parameters_of_a_function_are_its_dependencies() -> None:
    def joined(customers: object, orders: object, limit: int = 3) -> object:
        return customers, orders, limit

    one = pipeline(View("joined", transform=joined))
    assert [each.name for each in dependencies_of(one, "joined")] == ["orders", "customers", "joined"]


# Owners of checkpoints


class Files(dict[str, str]):
    def exists(self, path: str) -> bool:
        return path in self

    def read(self, path: str) -> str | None:
        return self.get(path)

    def write(self, path: str, text: str) -> None:
        self[path] = text


def test_a_checkpoint_keeps_its_id() -> None:
    files = Files()
    wanted = identity_of(pipeline(), "out", [ORDERS], "topic t")
    first = claim_checkpoint(files, "ck", wanted)
    assert claim_checkpoint(files, "ck", wanted).id == first.id != ""
    assert claim_checkpoint(files, "other", wanted).id != first.id


def test_the_checkpoint_of_another_pipeline_is_refused() -> None:
    files = Files()
    claim_checkpoint(files, "ck", identity_of(pipeline(name="a"), "out", [ORDERS], "topic t"))
    with pytest.raises(
        PipelineError, match=r"belongs to the query out of the pipeline a, not to out of b.*checkpoint:"
    ):
        claim_checkpoint(files, "ck", identity_of(pipeline(name="b"), "out", [ORDERS], "topic t"))


def test_a_query_with_other_sources_or_sink_is_refused() -> None:
    files = Files()
    claim_checkpoint(files, "ck", identity_of(pipeline(), "out", [ORDERS], "topic t"))
    with pytest.raises(PipelineError, match=r"reads orders \(orders\), now customers.*replay"):
        claim_checkpoint(files, "ck", identity_of(pipeline(), "out", [CUSTOMERS], "topic t"))
    with pytest.raises(PipelineError, match="writes to topic t, now to topic u"):
        claim_checkpoint(files, "ck", identity_of(pipeline(), "out", [ORDERS], "topic u"))


def test_a_checkpoint_of_another_program_is_refused() -> None:
    files = Files({"ck/metadata": "{}"})
    with pytest.raises(PipelineError, match="was not created by a Moldau pipeline"):
        claim_checkpoint(files, "ck", identity_of(pipeline(), "out", [ORDERS], "topic t"))


def test_a_damaged_identity_is_named_and_not_overwritten() -> None:
    files = Files({f"ck/{IDENTITY_FILE}": "{nonsense"})
    with pytest.raises(PipelineError, match="cannot be read"):
        claim_checkpoint(files, "ck", identity_of(pipeline(), "out", [ORDERS], "topic t"))
    assert files[f"ck/{IDENTITY_FILE}"] == "{nonsense"
    good = Files()
    claim_checkpoint(good, "ck", identity_of(pipeline(), "out", [ORDERS], "topic t"))
    assert json.loads(good[f"ck/{IDENTITY_FILE}"])["sources"] == {"orders": "orders"}


def test_the_sql_hash_is_stored_and_may_change() -> None:
    files = Files()
    view = View("v", "SELECT *\n  FROM orders")
    one = sql_hash([ORDERS, view])
    assert one == sql_hash([ORDERS, View("v", "SELECT * FROM orders")]) != sql_hash([View("v", "SELECT 1")])
    claim_checkpoint(files, "ck", identity_of(pipeline(), "out", [ORDERS], "topic t", one))
    assert claim_checkpoint(files, "ck", identity_of(pipeline(), "out", [ORDERS], "topic t", "another")).sql == one


# Owners of Parquet directories


def identity(query: str = "out") -> QueryIdentity:
    return claim_checkpoint(Files(), "ck", identity_of(pipeline(), query, [ORDERS], "parquet d"))


def test_a_directory_belongs_to_the_query_that_claimed_it_first() -> None:
    files, first, second = Files(), identity("a"), identity("b")
    check_owner(files, "d", "a", None)
    claim_directory(files, "d", first)
    claim_directory(files, "d", first)
    files["d/_spark_metadata"] = ""
    claim_directory(files, "d", first)
    with pytest.raises(PipelineError, match="belongs to the query a of the pipeline p with another checkpoint"):
        claim_directory(files, "d", second)
    with pytest.raises(PipelineError, match="belongs to the query a"):
        # With a new checkpoint batch 0 would be taken for the existing one.
        claim_directory(files, "d", identity("a"))
    with pytest.raises(PipelineError, match="b has no checkpoint yet, but d has rows of another query"):
        check_owner(files, "d", "b", None)


def test_a_directory_that_another_program_writes_to_is_refused() -> None:
    with pytest.raises(PipelineError, match="which another program writes to"):
        claim_directory(Files({"d/_spark_metadata": ""}), "d", identity())
    with pytest.raises(PipelineError, match="cannot be read"):
        claim_directory(Files({f"d/{OWNER_FILE}": "{}"}), "d", identity())


# Dead letters


def letter(*headers: tuple[str, bytes | None]) -> ConsumerRecord:
    return ConsumerRecord("dead", 0, 7, 99, False, b"k", b"v", headers)


def test_the_original_record_is_restored_from_a_dead_letter() -> None:
    back = original_record(
        letter(
            ("mine", b"1"),
            ("moldau.error.topic", b"orders"),
            ("moldau.error.partition", b"3"),
            ("moldau.error.timestamp", b"1234"),
            ("moldau.error.reason", b"malformed"),
            ("moldau.error.pipeline", b"p"),
            ("none", None),
        )
    )
    headers = (("mine", b"1"), ("none", None), ("moldau.redriven", b"1"))
    assert back == OriginalRecord("p", "orders", 3, 1234, b"k", b"v", headers)


def test_how_often_a_dead_letter_was_sent_back_is_counted() -> None:
    back = original_record(letter(("moldau.redriven", b"2"), ("moldau.error.topic", b"orders")))
    assert back is not None
    assert back.headers == (("moldau.redriven", b"3"),)
    assert back.partition is None


def test_a_record_without_error_headers_is_not_a_dead_letter() -> None:
    assert original_record(letter(("a", b"b"))) is None
    assert original_record(letter(("moldau.error.topic", b""))) is None


# Spark's errors


def test_incompatible_state_is_reported_with_our_advice_not_sparks() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: [STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided "
        "key schema does not match existing state key schema. If you want to force running the query without schema "
        "validation, please set spark.sql.streaming.stateStore.stateSchemaCheck to false. SQLSTATE: 42K06"
    )
    message = summarize_error(RuntimeError(text))
    assert "replay FILE --from earliest" in message
    assert "stateSchemaCheck" not in message


def test_internal_columns_are_not_suggested() -> None:
    text = "[UNRESOLVED_COLUMN] `m` cannot be resolved. Did you mean one of the following? [{}]. SQLSTATE: 42703"
    said = "`m` cannot be resolved. Did you mean one of the following? [`n`, `_key`]."
    for offered in ("`n`, `__key`, `_key`, `__bad`", "`__is_bad`, `n`, `_key`", "`__key`, `__bad`, `n`, `_key`"):
        assert summarize_error(RuntimeError(text.format(offered))) == said
