"""Group protocols that Moldau does not serve: the responses are those of Apache Kafka without these features."""

from collections.abc import Iterator
from typing import Any

import pytest
from broker_under_test import Broker, broker

from support.wire import API_VERSIONS, WireClient

CONSUMER_GROUP_HEARTBEAT, SHARE_GROUP_HEARTBEAT = 68, 76
UNSUPPORTED_VERSION = 35
VERSIONS = [(CONSUMER_GROUP_HEARTBEAT, 0), (CONSUMER_GROUP_HEARTBEAT, 1), (SHARE_GROUP_HEARTBEAT, 1)]
JOINING = {"group_id": "g", "member_id": "member-1", "member_epoch": 0, "subscribed_topic_names": ["orders"]}
LEAVING = {"group_id": "g", "member_id": "member-1", "member_epoch": -1}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    features = ("group.version=0", "share.version=0")
    with broker(tmp_path_factory.mktemp("refused") / "data", kafka_features=features) as started:
        yield started


@pytest.mark.parametrize("request_body", [JOINING, LEAVING, {}], ids=["joining", "leaving", "empty"])
@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_a_heartbeat_of_an_unsupported_protocol_is_refused(
    client: WireClient, api: int, version: int, request_body: dict[str, Any]
) -> None:
    response = client.request(api, version, request_body)
    del response["error_message"]
    assert response == {
        "throttle_time": 0,
        "error_code": UNSUPPORTED_VERSION,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "assignment": None,
    }


def test_the_connection_stays_open(client: WireClient) -> None:
    for api, version in VERSIONS * 2:
        assert client.request(api, version, JOINING)["error_code"] == UNSUPPORTED_VERSION


def test_refused_apis_are_advertised(client: WireClient) -> None:
    response = client.request(API_VERSIONS, 4, {"client_software_name": "raw", "client_software_version": "1"})
    advertised = {each["api_key"]: (each["min_version"], each["max_version"]) for each in response["api_keys"]}
    assert advertised[CONSUMER_GROUP_HEARTBEAT] == (0, 1)
    assert advertised[SHARE_GROUP_HEARTBEAT] == (1, 1)


def test_their_features_are_not_finalized(client: WireClient) -> None:
    response = client.request(API_VERSIONS, 4, {"client_software_name": "raw", "client_software_version": "1"})
    assert {each["name"] for each in response["finalized_features"]}.isdisjoint({"group.version", "share.version"})
