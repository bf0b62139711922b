"""What a handler knows of the caller besides the request itself."""

from dataclasses import dataclass


@dataclass(slots=True)
class Session:
    """One client connection, as the requests on it see it. `api_version` changes with every request."""

    peer: str
    listener: str
    api_version: int = 0
    client_id: str | None = None
    client_software: str = ""
