"""Options of a read: names, values, and errors."""

import pickle
from typing import Any

import pytest

from moldau.client.consumer.offset_lookup import EARLIEST, LATEST
from moldau.client.record import TopicPartition
from moldau.spark.errors import OptionError
from moldau.spark.source.offset_ranges import TriggerLimits
from moldau.spark.source.offsets import EarliestOrLatest, GlobalTimestamp, SpecificOffsets, SpecificTimestamps
from moldau.spark.source.options import (
    SourceOptions,
    TopicSubscription,
    check_read_options,
    includes_headers,
    parse_connection,
    parse_source_options,
)

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def batch(**options: str) -> SourceOptions:
    return parse_source_options({**BASE, **dotted(options)}, is_stream=False)


def stream(**options: str) -> SourceOptions:
    return parse_source_options({**BASE, **dotted(options)}, is_stream=True)


def dotted(options: dict[str, str]) -> dict[str, str]:
    return {name.replace("__", "."): value for name, value in options.items()}


def error_text(options: dict[str, str], *, is_stream: bool = False) -> str:
    with pytest.raises(OptionError) as refused:
        parse_source_options(options, is_stream=is_stream)
    return str(refused.value)


# Required options


def test_bootstrap_servers_are_needed() -> None:
    assert "kafka.bootstrap.servers is missing" in error_text({"subscribe": "orders"})
    assert "kafka.bootstrap.servers is missing" in error_text({"subscribe": "orders", "kafka.bootstrap.servers": " "})


def test_a_subscription_is_required() -> None:
    assert "set subscribe, subscribePattern or assign" in error_text({"kafka.bootstrap.servers": "b:1"})


def test_patterns_match_topics_about_moldau_itself_only_if_they_name_them() -> None:
    own = TopicPartition("moldau.pipelines", 0)
    assert TopicSubscription(pattern=".*").has(TopicPartition("moldau-orders", 0))
    assert not TopicSubscription(pattern=".*").has(own)
    assert TopicSubscription(pattern=r"moldau\..*").has(own)
    assert TopicSubscription(topics=("moldau.pipelines",)).has(own)


def test_only_one_subscription_is_allowed() -> None:
    assert "not subscribe and assign" in error_text({**BASE, "assign": '{"a": [0]}'})


def test_topics_are_comma_separated() -> None:
    assert batch(subscribe=" b, a ,,a").subscription == TopicSubscription(topics=("a", "b"))
    assert "subscribe must be a comma-separated list of topics" in error_text({**BASE, "subscribe": " , "})


def test_a_pattern_is_a_regular_expression() -> None:
    given = {"kafka.bootstrap.servers": "b:1"}
    assert parse_source_options({**given, "subscribePattern": "or.*"}, is_stream=True).subscription.pattern == "or.*"
    assert "is not a regular expression" in error_text({**given, "subscribePattern": "(("})
    assert "subscribePattern is empty" in error_text({**given, "subscribePattern": " "})


def test_partitions_may_be_assigned() -> None:
    given = {"kafka.bootstrap.servers": "b:1", "assign": '{"a": [1, 0]}'}
    assert parse_source_options(given, is_stream=False).subscription == TopicSubscription(
        partitions=(TopicPartition("a", 0), TopicPartition("a", 1))
    )


# Names


def test_names_are_case_insensitive() -> None:
    options = {"KAFKA.Bootstrap.Servers": "b:1", "SUBSCRIBE": "a", "FailOnDataloss": "FALSE", "includeheaders": "true"}
    parsed = parse_source_options(options, is_stream=True)
    assert (parsed.bootstrap, parsed.fail_on_data_loss, parsed.include_headers) == ("b:1", False, True)


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("startingOffset", "did you mean startingOffsets?"),
        ("maxoffsetpertrigger", "did you mean maxOffsetsPerTrigger?"),
        ("bootstrap.servers", "did you mean kafka.bootstrap.servers?"),
        ("kafka.bootstrap.server", "did you mean kafka.bootstrap.servers?"),
        ("kafka.isolation.levl", "did you mean kafka.isolation.level?"),
        ("kafka.max.pol.records", "did you mean kafka.max.poll.records?"),
        ("kafka.securty.protocol", "did you mean kafka.security.protocol?"),
        ("topic", '.option("subscribe", "orders")'),
        ("path", "load() takes no path here"),
        ("zzz", "there is no option 'zzz'"),
    ],
)
def test_an_unknown_option_is_refused_with_a_suggestion(option: str, hint: str) -> None:
    assert hint in error_text({**BASE, option: "1"})


@pytest.mark.parametrize(
    "name", ["auto.offset.reset", "key.deserializer", "value.deserializer", "enable.auto.commit", "interceptor.classes"]
)
def test_settings_that_the_connector_refuses_are_refused_with_the_reason(name: str) -> None:
    assert f"kafka.{name} cannot be set: " in error_text({**BASE, f"kafka.{name}": "x"})


@pytest.mark.parametrize(
    "name", ["session.timeout.ms", "max.poll.records", "fetch.min.bytes", "partition.assignment.strategy", "acks"]
)
def test_settings_of_kafka_clients_without_effect_are_accepted(name: str) -> None:
    assert parse_source_options({**BASE, f"kafka.{name}": "1"}, is_stream=True) == stream()


# Values


def test_a_batch_starts_at_earliest_and_a_stream_at_latest() -> None:
    assert (batch().starting, batch().ending) == (EarliestOrLatest(EARLIEST), EarliestOrLatest(LATEST))
    assert stream().starting == EarliestOrLatest(LATEST)


def test_a_global_time_overrides_times_and_times_override_offsets() -> None:
    times, offsets = '{"orders": {"0": 7}}', '{"orders": {"0": 9}}'
    partition = TopicPartition("orders", 0)
    assert stream(startingOffsets=offsets).starting == SpecificOffsets({partition: 9})
    assert stream(startingOffsets=offsets, startingOffsetsByTimestamp=times).starting == SpecificTimestamps(
        {partition: 7}
    )
    everything = stream(startingOffsets=offsets, startingOffsetsByTimestamp=times, startingTimestamp="5")
    assert everything.starting == GlobalTimestamp(5)
    assert batch(endingOffsets=offsets, endingOffsetsByTimestamp=times).ending == SpecificTimestamps({partition: 7})
    assert batch(endingOffsetsByTimestamp=times, endingTimestamp="5").ending == GlobalTimestamp(5)


@pytest.mark.parametrize("name", ["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    assert f"{name} is for batch queries: a stream has no end" in error_text({**BASE, name: "5"}, is_stream=True)


def test_a_batch_cannot_start_at_the_latest_or_end_at_the_earliest() -> None:
    assert "startingOffsets cannot be latest" in error_text({**BASE, "startingOffsets": "latest"})
    assert "endingOffsets cannot be earliest" in error_text({**BASE, "endingOffsets": "earliest"})
    assert stream(startingOffsets="latest").starting == EarliestOrLatest(LATEST)


def test_both_ends_of_a_batch_are_compared() -> None:
    starting, ending = '{"orders": {"0": 9}}', '{"orders": {"0": 3}}'
    assert "the end is before the start" in error_text({**BASE, "startingOffsets": starting, "endingOffsets": ending})


def test_the_strategy_without_a_matching_record_can_be_chosen() -> None:
    assert not stream().starts_at_latest_without_match
    assert stream(startingOffsetsByTimestampStrategy="Latest").starts_at_latest_without_match
    assert "must be error or latest, not 'first'" in error_text({**BASE, "startingOffsetsByTimestampStrategy": "first"})


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("startingTimestamp", "yesterday", "startingTimestamp must be a time in milliseconds since 1970"),
        ("endingTimestamp", "-5", "endingTimestamp must be a time in milliseconds since 1970"),
        ("failOnDataLoss", "maybe", "failOnDataLoss must be true or false, not 'maybe'"),
        ("includeHeaders", "1", "includeHeaders must be true or false, not '1'"),
        ("publishOffsets", "no", "publishOffsets must be true or false, not 'no'"),
        ("minPartitions", "0", "minPartitions must be an integer, 1 or more, not '0'"),
        ("minPartitions", "many", "minPartitions must be an integer, 1 or more, not 'many'"),
        ("maxRecordsPerPartition", "-1", "maxRecordsPerPartition must be an integer, 1 or more"),
        ("maxOffsetsPerTrigger", "0", "maxOffsetsPerTrigger must be an integer, 1 or more"),
        ("minOffsetsPerTrigger", "1e3", "minOffsetsPerTrigger must be an integer, 1 or more"),
        ("maxTriggerDelay", "soon", "maxTriggerDelay must be a duration such as 500ms"),
        ("fetchOffset.numRetries", "0", "fetchOffset.numRetries must be an integer, 1 or more"),
        ("fetchOffset.retryIntervalMs", "-1", "fetchOffset.retryIntervalMs must be an integer, 0 or more"),
        ("kafkaConsumer.pollTimeoutMs", "0", "kafkaConsumer.pollTimeoutMs must be an integer, 1 or more"),
        ("kafka.isolation.level", "committed", "kafka.isolation.level must be read_uncommitted or read_committed"),
        ("kafka.group.id", " ", "kafka.group.id is empty"),
        ("kafka.request.timeout.ms", "0", "kafka.request.timeout.ms must be an integer, 1 or more"),
        ("kafka.max.partition.fetch.bytes", "big", "kafka.max.partition.fetch.bytes must be an integer"),
    ],
)
def test_an_invalid_value_is_refused(name: str, value: str, complaint: str) -> None:
    assert complaint in error_text({**BASE, name: value})


def test_limits_of_a_trigger() -> None:
    assert stream(maxOffsetsPerTrigger="100", minOffsetsPerTrigger="10", maxTriggerDelay="30s").limits == TriggerLimits(
        100, 10, 30_000
    )
    assert "minOffsetsPerTrigger (5) is higher than maxOffsetsPerTrigger (4)" in error_text(
        {**BASE, "minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, is_stream=True
    )


@pytest.mark.parametrize(
    ("text", "expected_ms"), [("15m", 900_000), ("1 h", 3_600_000), ("2d", 172_800_000), ("250", 250), ("5000us", 5)]
)
def test_durations_are_written_as_in_spark(text: str, expected_ms: int) -> None:
    assert stream(maxTriggerDelay=text).limits.delay_max_ms == expected_ms


def test_tasks_and_groups() -> None:
    parsed = stream(
        minPartitions="7",
        maxRecordsPerPartition="1000",
        groupIdPrefix="team",
        kafka__group__id="lag",
        publishOffsets="false",
    )
    assert (parsed.partitions_min, parsed.records_per_partition_max) == (7, 1000)
    assert (parsed.group_id_prefix, parsed.group_id, parsed.publishes_offsets) == ("team", "lag", False)
    assert (stream().group_id_prefix, stream().group_id, stream().publishes_offsets) == (
        "spark-moldau-source",
        None,
        True,
    )


def test_fetch_options_of_tasks() -> None:
    fetching = batch(
        kafka__isolation__level="READ_COMMITTED",
        kafka__max__partition__fetch__bytes="1000",
        kafka__fetch__max__bytes="5000",
        kafkaConsumer__pollTimeoutMs="700",
    ).fetch_options
    assert (fetching.isolation_level, fetching.partition_max_bytes, fetching.max_bytes) == (1, 1000, 5000)
    assert fetching.timeout_ms == 700


def test_options_can_be_pickled() -> None:
    parsed = stream(startingOffsets='{"orders": {"0": 5}}', kafka__client__id="me")
    assert pickle.loads(pickle.dumps(parsed)) == parsed


# Connections


def connection(**options: str) -> dict[str, Any]:
    return dict(parse_connection({"kafka.bootstrap.servers": "b:1", **dotted(options)}))


def test_a_connection_has_the_arguments_of_a_cluster() -> None:
    assert connection() == {"bootstrap": "b:1", "client_id": "moldau-spark"}
    assert connection(
        kafka__client__id="me",
        kafka__request__timeout__ms="5000",
        kafka__retry__backoff__ms="7",
        kafka__retry__backoff__max__ms="70",
        kafka__metadata__max__age__ms="90",
    ) == {
        "bootstrap": "b:1",
        "client_id": "me",
        "request_timeout_ms": 5000,
        "retry_backoff_ms": 7,
        "retry_backoff_max_ms": 70,
        "metadata_max_age_ms": 90,
    }


def test_a_connection_may_be_secured_and_stays_hashable() -> None:
    secured = connection(
        kafka__security__protocol="SASL_PLAINTEXT",
        kafka__sasl__mechanism="SCRAM-SHA-256",
        kafka__sasl__jaas__config="org.apache.kafka.common.security.scram.ScramLoginModule required "
        'username="ada" password="engine";',
    )
    assert secured["security"] is not None
    assert hash(tuple(sorted(secured.items(), key=lambda item: item[0])))
    assert "engine" not in repr(secured)


def test_an_invalid_security_setting_is_reported_as_such() -> None:
    with pytest.raises(OptionError, match="security"):
        connection(kafka__security__protocol="SASL_TELEPATHY")


# Checks at load()


def test_reads_and_writes_are_distinguished_by_the_subscription() -> None:
    with pytest.raises(OptionError):
        check_read_options({"Subscribe": "a"})
    check_read_options({"topic": "a", "kafka.bootstrap.servers": "b:1"})


def test_a_read_is_checked_before_it_is_known_whether_it_is_a_stream() -> None:
    check_read_options({**BASE, "startingOffsets": "latest"})
    check_read_options({**BASE, "endingOffsets": '{"orders": {"0": 5}}'})
    with pytest.raises(OptionError):
        check_read_options({**BASE, "minPartitions": "none"})


def test_the_headers_option_is_case_insensitive() -> None:
    assert includes_headers({"INCLUDEHEADERS": "true"})
    assert not includes_headers({})
