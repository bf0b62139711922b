"""Requests about ACLs to a broker without an authorizer."""

from typing import Any

import pytest

from support.wire import ConnectionClosedError, WireClient

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
SECURITY_DISABLED = 54
ANY, TOPIC, PREFIXED, READ, ALLOW = 1, 2, 4, 3, 3

FILTER = {
    "resource_type_filter": ANY,
    "resource_name_filter": None,
    "pattern_type_filter": ANY,
    "principal_filter": None,
    "host_filter": None,
    "operation": ANY,
    "permission_type": ANY,
}
ACL = {
    "resource_type": TOPIC,
    "resource_name": "orders",
    "resource_pattern_type": PREFIXED,
    "principal": "User:ada",
    "host": "*",
    "operation": READ,
    "permission_type": ALLOW,
}
REJECTED = {"error_code": SECURITY_DISABLED, "error_message": "No Authorizer is configured."}
VERSIONS = [1, 2, 3]


@pytest.mark.parametrize("version", VERSIONS)
def test_acls_cannot_be_described(client: WireClient, version: int) -> None:
    assert client.request(DESCRIBE_ACLS, version, FILTER) == {
        "throttle_time": 0,
        "error_code": SECURITY_DISABLED,
        "error_message": "No Authorizer is configured on the broker",
        "resources": [],
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_creation_is_rejected(client: WireClient, version: int) -> None:
    invalid = [{**ACL, "principal": "no type"}, {**ACL, "resource_name": ""}, {**ACL, "resource_type": ANY}]
    response = client.request(CREATE_ACLS, version, {"creations": [ACL, ACL, *invalid]})
    assert response == {"throttle_time": 0, "results": [REJECTED] * 5}
    assert client.request(CREATE_ACLS, version, {"creations": []})["results"] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_every_filter_of_a_deletion_is_rejected(client: WireClient, version: int) -> None:
    response = client.request(DELETE_ACLS, version, {"filters": [FILTER, FILTER]})
    assert response == {"throttle_time": 0, "filter_results": [{**REJECTED, "matching_acls": []}] * 2}
    assert client.request(DELETE_ACLS, version, {"filters": []})["filter_results"] == []


UNKNOWN_IN_FILTER = [
    {**FILTER, name: 0} for name in ("resource_type_filter", "pattern_type_filter", "operation", "permission_type")
]
UNKNOWN_IN_ACL = [
    {**ACL, name: 0} for name in ("resource_type", "resource_pattern_type", "operation", "permission_type")
]


@pytest.mark.parametrize(
    ("api", "request_"),
    [
        *[(DESCRIBE_ACLS, each) for each in UNKNOWN_IN_FILTER],
        *[(CREATE_ACLS, {"creations": [ACL, each]}) for each in UNKNOWN_IN_ACL],
        *[(DELETE_ACLS, {"filters": [FILTER, each]}) for each in UNKNOWN_IN_FILTER],
    ],
)
def test_the_code_for_unknown_elements_closes_the_connection(
    client: WireClient, api: int, request_: dict[str, Any]
) -> None:
    with pytest.raises(ConnectionClosedError):
        client.request(api, 3, request_)


def test_other_undefined_codes_are_accepted(client: WireClient) -> None:
    undefined = {"resource_type_filter": 77, "pattern_type_filter": 77, "operation": 77, "permission_type": 77}
    assert client.request(DESCRIBE_ACLS, 3, {**FILTER, **undefined})["error_code"] == SECURITY_DISABLED
    assert client.request(DELETE_ACLS, 3, {"filters": [{**FILTER, **undefined}]})["filter_results"][0]["error_code"]
    acl = {**ACL, "resource_type": 77, "resource_pattern_type": 77, "operation": 77, "permission_type": 77}
    assert client.request(CREATE_ACLS, 3, {"creations": [acl]})["results"] == [REJECTED]
