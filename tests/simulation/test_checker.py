"""The record checker finds each anomaly that it names, and nothing in a correct history."""

from collections.abc import Callable

import pytest

from moldau.testing.simulation.checkers.history import History, PollOperation, TopicChange, UnexpectedError
from moldau.testing.simulation.checkers.records import check_records

P = ("topic", 0)
ALL = -1


def good() -> History:
    history = History()
    first = history.send("p", P, [b"a", b"b"], acks=ALL, is_idempotent=True)
    history.acknowledge(first, 0)
    second = history.send("p", P, [b"c"], acks=ALL, is_idempotent=True)
    history.acknowledge(second, 2)
    history.send("q", P, [b"unknown"], acks=ALL)
    leader_only = history.send("r", P, [b"d"], acks=1)
    history.acknowledge(leader_only, 3)
    history.polls.append(PollOperation("c", P, 0, 2, [(0, b"a"), (1, b"b")]))
    history.polls.append(PollOperation("c", P, 2, 4, [(2, b"c"), (3, b"d")]))
    history.polls.append(PollOperation("other", P, 1, 4, [(1, b"b")]))
    history.topic_changes += [TopicChange("topic", True, True), TopicChange("old", True, True)]
    history.topic_changes += [TopicChange("old", False, True), TopicChange("perhaps", True, False)]
    history.topic_changes += [TopicChange("dying", True, True), TopicChange("dying", False, False)]
    history.logs[P] = [(0, b"a"), (1, b"b"), (2, b"c"), (3, b"d")]
    history.topics = ["topic"]
    return history


def anomalies(history: History) -> set[str]:
    return {violation.anomaly for violation in check_records(history)}


def test_a_good_history_is_clean() -> None:
    assert check_records(good()) == []


def test_a_send_acknowledged_by_the_leader_only_may_be_lost() -> None:
    history = good()
    history.logs[P] = list(history.logs[P])[:3]
    history.polls[1] = PollOperation("c", P, 2, 3, [(2, b"c")])
    assert check_records(history) == []


def test_an_unacknowledged_send_may_be_in_the_log() -> None:
    history = good()
    history.logs[P] = [*history.logs[P], (4, b"unknown")]
    assert check_records(history) == []


def lost(history: History) -> None:
    history.logs[P] = list(history.logs[P])[:2]


def duplicated(history: History) -> None:
    history.logs[P] = [*history.logs[P], (4, b"c")]


def swapped(history: History) -> None:
    history.logs[P] = [(0, b"c"), (1, b"a"), (2, b"b"), (3, b"d")]


def torn(history: History) -> None:
    history.logs[P] = [(0, b"a"), (1, b"c"), (2, b"d")]


def two_at_one_offset(history: History) -> None:
    history.logs[P] = [*history.logs[P], (3, b"unknown")]


def with_a_gap(history: History) -> None:
    history.logs[P] = [*history.logs[P], (5, b"unknown")]


def never_sent(history: History) -> None:
    history.logs[P] = [*history.logs[P], (4, b"garbage")]


def polled_again(history: History) -> None:
    history.polls.append(PollOperation("c", P, 3, 4, [(3, b"d")]))


def skipped(history: History) -> None:
    del history.polls[0]
    history.polls.insert(0, PollOperation("c", P, 0, 4, [(0, b"a")]))


def skipped_at_the_start(history: History) -> None:
    history.polls.append(PollOperation("third", P, 0, 4, [(1, b"b")]))


def skipped_inside(history: History) -> None:
    history.polls.append(PollOperation("third", P, 0, 4, [(0, b"a"), (2, b"c")]))


def above(history: History) -> None:
    history.polls.append(PollOperation("third", P, 3, 3, [(3, b"d")]))


def fell(history: History) -> None:
    history.polls.append(PollOperation("c", P, 4, 3, []))


def vanished(history: History) -> None:
    history.polls.append(PollOperation("c", P, 4, 5, [(4, b"unknown")]))


def changed(history: History) -> None:
    history.polls.append(PollOperation("third", P, 3, 4, [(3, b"unknown")]))


def elsewhere(history: History) -> None:
    history.sends[1].offset = 3


def refused(history: History) -> None:
    history.unexpected_errors.append(UnexpectedError("p", P, "sequence refused"))


def topic_gone(history: History) -> None:
    history.topics = []


def topic_back(history: History) -> None:
    history.topics = ["old", "topic"]


def two_producers_with_one_id(history: History) -> None:
    history.producer_ids += [1, 2, 1]


@pytest.mark.parametrize(
    ("anomaly", "spoil"),
    [
        ("lost write", lost),
        ("duplicate", duplicated),
        ("non-monotonic send", swapped),
        ("torn batch", torn),
        ("inconsistent offsets", two_at_one_offset),
        ("inconsistent offsets", changed),
        ("gap", with_a_gap),
        ("never sent", never_sent),
        ("non-monotonic poll", polled_again),
        ("poll skip", skipped),
        ("poll skip", skipped_at_the_start),
        ("internal poll skip", skipped_inside),
        ("read above the high watermark", above),
        ("high watermark fell", fell),
        ("vanished", vanished),
        ("wrong offset", elsewhere),
        ("sequence refused", refused),
        ("producer id handed out twice", two_producers_with_one_id),
        ("lost topic", topic_gone),
        ("deleted topic is back", topic_back),
    ],
)
def test_each_anomaly_is_caught(anomaly: str, spoil: Callable[[History], None]) -> None:
    history = good()
    spoil(history)
    assert anomaly in anomalies(history)


def test_a_late_unacknowledged_send_is_an_anomaly_only_with_idempotence() -> None:
    for is_idempotent in (False, True):
        history = History()
        history.send("p", P, [b"first"], acks=ALL, is_idempotent=is_idempotent)
        second = history.send("p", P, [b"second"], acks=ALL, is_idempotent=is_idempotent)
        history.acknowledge(second, 0)
        history.logs[P] = [(0, b"second"), (1, b"first")]
        assert anomalies(history) == ({"non-monotonic send"} if is_idempotent else set())
