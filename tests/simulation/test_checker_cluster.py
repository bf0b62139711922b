"""The cluster checker finds each anomaly that it names, and nothing in a correct history."""

import pytest

from moldau.testing.simulation.checkers.history import (
    ClusterHistory,
    Partition,
    PollOperation,
    TopicChange,
    UnexpectedError,
)
from moldau.testing.simulation.checkers.records import check_cluster

ORDERS: Partition = ("orders", 0)
A, B, C = b"a", b"b", b"c"


def sound() -> ClusterHistory:
    """Returns a history with three acknowledged records of one idempotent producer, read in two polls."""
    history = ClusterHistory()
    for offset, value in enumerate((A, B, C)):
        send = history.send("producer", ORDERS, [value], acks=-1, is_idempotent=True)
        history.acknowledge(send, offset)
    history.logs[ORDERS] = [(0, A), (1, B), (2, C)]
    history.replicas[ORDERS] = {1: [(0, A), (1, B), (2, C)], 2: [(0, A), (1, B), (2, C)]}
    history.readers["consumer"] = [ORDERS]
    history.polls = [
        PollOperation("consumer", ORDERS, 0, 3, [(0, A), (1, B)]),
        PollOperation("consumer", ORDERS, 2, 3, [(2, C)]),
    ]
    return history


def anomalies(history: ClusterHistory) -> list[str]:
    return [violation.anomaly for violation in check_cluster(history)]


def test_a_sound_history_has_no_violations() -> None:
    assert anomalies(sound()) == []


def test_a_missing_acknowledged_record_is_a_lost_write() -> None:
    history = sound()
    history.logs[ORDERS] = [(0, A), (1, B)]
    history.polls = history.polls[:1]
    assert anomalies(history) == ["lost write"]


def test_an_unacknowledged_record_may_be_missing() -> None:
    history = sound()
    history.send("other", ORDERS, [b"unknown"], acks=-1, is_idempotent=True)
    leader_only = history.send("other", ORDERS, [b"leader only"], acks=1)
    history.acknowledge(leader_only, 7)
    assert anomalies(history) == []


def test_one_idempotent_send_at_two_offsets_is_a_duplicate() -> None:
    history = sound()
    history.logs[ORDERS] = [(0, A), (1, B), (2, C), (3, B)]
    history.polls.append(PollOperation("consumer", ORDERS, 3, 4, [(3, B)]))
    assert anomalies(history) == ["duplicate"]


def test_a_producer_without_idempotence_may_send_duplicates() -> None:
    history = ClusterHistory()
    history.acknowledge(history.send("plain", ORDERS, [A], acks=-1), 0)
    history.logs[ORDERS] = [(0, A), (1, A)]
    assert anomalies(history) == []


def test_a_record_at_another_offset_than_acknowledged_is_at_a_wrong_offset() -> None:
    history = sound()
    history.sends[2].offset = 9
    assert anomalies(history) == ["wrong offset"]


def test_two_values_acknowledged_at_one_offset_are_inconsistent() -> None:
    history = sound()
    del history.logs[ORDERS]
    history.acknowledge(history.send("other", ORDERS, [b"d"], acks=-1, is_idempotent=True), 1)
    assert anomalies(history) == ["inconsistent offsets"]


def test_two_values_read_at_one_offset_are_inconsistent() -> None:
    history = sound()
    history.polls.append(PollOperation("other", ORDERS, 1, 3, [(1, C)]))
    assert set(anomalies(history)) == {"inconsistent offsets"}


def test_a_missing_record_that_was_read_has_vanished() -> None:
    history = sound()
    history.sends[2].is_acknowledged = False
    history.logs[ORDERS] = [(0, A), (1, B)]
    assert anomalies(history) == ["vanished"]


@pytest.mark.parametrize(
    ("records", "anomaly"),
    [
        ([(0, A), (2, C)], "internal poll skip"),
        ([(1, B), (0, A)], "internal non-monotonic poll"),
        ([(2, C), (2, C)], "internal non-monotonic poll"),
    ],
)
def test_a_poll_with_offsets_out_of_order_is_a_violation(records: list[tuple[int, bytes]], anomaly: str) -> None:
    history = sound()
    history.polls.append(PollOperation("other", ORDERS, records[0][0], 3, records))
    assert anomalies(history) == [anomaly]


def test_an_assigned_consumer_that_misses_records_is_a_poll_skip() -> None:
    history = sound()
    history.polls.append(PollOperation("other", ORDERS, 0, 3, [(0, A)]))
    history.polls.append(PollOperation("other", ORDERS, 1, 3, [(2, C)]))
    assert anomalies(history) == ["poll skip"]


def test_an_assigned_consumer_that_reads_backwards_is_a_non_monotonic_poll() -> None:
    history = sound()
    history.polls.append(PollOperation("consumer", ORDERS, 3, 3, [(1, B)]))
    assert anomalies(history) == ["non-monotonic poll"]


def test_reordered_records_of_one_producer_are_a_non_monotonic_send() -> None:
    history = sound()
    for send, offset in zip(history.sends, (0, 2, 1), strict=True):
        send.offset = offset
    history.logs[ORDERS] = [(0, A), (1, C), (2, B)]
    history.replicas.clear()
    history.polls = [PollOperation("consumer", ORDERS, 0, 3, [(0, A), (1, C), (2, B)])]
    assert anomalies(history) == ["non-monotonic send"]


def test_a_record_that_a_reader_never_read_is_unseen() -> None:
    history = sound()
    history.polls.pop()
    assert anomalies(history) == ["unseen"]


def test_reading_above_the_high_watermark_is_a_violation() -> None:
    history = sound()
    history.polls[1] = PollOperation("consumer", ORDERS, 2, 2, [(2, C)])
    assert anomalies(history) == ["read above the high watermark"]


def test_different_replicas_are_a_violation() -> None:
    history = sound()
    history.replicas[ORDERS] = {1: [(0, A), (1, B), (2, C)], 2: [(0, A), (1, C)]}
    assert anomalies(history) == ["replicas differ"]
    history.replicas[ORDERS] = {1: [(0, A), (1, B), (2, C)], 3: [(0, A), (1, B)]}
    assert anomalies(history) == ["replicas differ"]


def test_a_record_that_was_never_sent_is_a_violation() -> None:
    history = sound()
    history.readers.clear()
    history.logs[ORDERS] = [(0, A), (1, B), (2, C), (3, b"ghost")]
    assert anomalies(history) == ["never sent"]


def test_an_unexpected_error_is_a_violation() -> None:
    history = sound()
    history.unexpected_errors.append(UnexpectedError("consumer", ORDERS, "refused: offset_out_of_range"))
    assert anomalies(history) == ["refused: offset_out_of_range"]


def test_a_topic_that_exists_after_its_acknowledged_deletion_is_a_violation() -> None:
    history = sound()
    history.topic_changes = [TopicChange("side", True, True), TopicChange("side", False, True)]
    history.topics = ["orders", "side"]
    assert anomalies(history) == ["deleted topic is back"]
    history.topic_changes = [TopicChange("side", True, True)]
    history.topics = ["orders"]
    assert anomalies(history) == ["lost topic"]


def test_a_lossy_topic_is_still_checked_for_everything_else() -> None:
    history = sound()
    history.lossy_topics["orders"] = "unclean elections"
    history.unexpected_errors.append(UnexpectedError("consumer", ORDERS, "refused: offset_out_of_range"))
    history.logs[ORDERS] = [(0, A), (1, C)]
    history.replicas[ORDERS] = {1: [(0, A), (1, C)], 2: [(0, A), (1, C)]}
    assert anomalies(history) == []
    history.logs[ORDERS] = [(0, A), (1, C), (2, C)]
    history.replicas[ORDERS] = {1: [(0, A)], 2: [(0, A), (1, C)]}
    assert sorted(anomalies(history)) == ["duplicate", "replicas differ"]


def test_a_lossy_topic_may_reorder_the_records_of_a_producer() -> None:
    history = sound()
    history.lossy_topics["orders"] = "write.caching"
    history.logs[ORDERS] = [(0, C), (1, A)]
    history.replicas.clear()
    assert anomalies(history) == []
