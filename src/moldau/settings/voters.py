"""Parser of controller.quorum.voters: `1@alpha:9092,2@beta:9092`."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from moldau.errors import InvalidConfigError

SETTING_NAME = "controller.quorum.voters"
VOTER_PATTERN = re.compile(
    r"(?P<id>[0-9]{1,10})@(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):(?P<port>[0-9]{1,5})", re.ASCII
)


class VoterAddress(NamedTuple):
    node_id: int
    host: str
    port: int


def parse_voters(voters: Sequence[str]) -> tuple[VoterAddress, ...]:
    """Returns the voters by ascending id. Raises InvalidConfigError if a voter is invalid or a duplicate."""
    voters_by_id: dict[int, VoterAddress] = {}
    for text in voters:
        match = VOTER_PATTERN.fullmatch(text.strip())
        if match is None or not 0 < int(match["port"]) < 65_536 or int(match["id"]) > 2**31 - 1:
            raise InvalidConfigError(
                f"{SETTING_NAME}: {text!r} is not a voter; use id@host:port, for example 1@127.0.0.1:9092"
            )
        voter = VoterAddress(int(match["id"]), match["host"].strip("[]"), int(match["port"]))
        if voter.node_id in voters_by_id:
            raise InvalidConfigError(f"{SETTING_NAME}: node {voter.node_id} is listed twice")
        if any(voter[1:] == other[1:] for other in voters_by_id.values()):
            raise InvalidConfigError(f"{SETTING_NAME}: two voters have the address {voter.host}:{voter.port}")
        voters_by_id[voter.node_id] = voter
    return tuple(voters_by_id[node_id] for node_id in sorted(voters_by_id))
