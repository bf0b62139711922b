"""The client ids of requests that nodes send: to each other, and to themselves for the HTTP API."""

HTTP_CLIENT_ID = "moldau-http"
_NODE_PREFIX = "node-"


def node_client_id(node_id: int) -> str:
    return f"{_NODE_PREFIX}{node_id}"


def is_sent_by_node(client_id: str | None) -> bool:
    """Returns whether a request comes from a node. A client can use such a client id too, so it proves nothing."""
    if client_id is None or not client_id.startswith(_NODE_PREFIX):
        return client_id == HTTP_CLIENT_ID
    return client_id.removeprefix(_NODE_PREFIX).isdecimal()
