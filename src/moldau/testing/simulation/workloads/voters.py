"""Who gives nodes a vote in the metadata quorum and takes it away again, whatever happens to them meanwhile."""

import random
from collections import Counter
from collections.abc import Mapping

from moldau.client.admin.admin import Admin
from moldau.client.admin.quorum import NodeEndpoint
from moldau.testing.simulation.workloads.groups import ClusterFactory, ClusterWorkload
from moldau.testing.simulation.workloads.recorder import RecordingCluster

VOTERS_MIN = 2
LISTENER = "PLAINTEXT"


class VoterChurn(ClusterWorkload):
    MUST_PROGRESS = False

    def __init__(
        self,
        name: str,
        open_cluster: ClusterFactory,
        randomness: random.Random,
        addresses: Mapping[int, tuple[str, int]],
        counts: Counter[str],
    ) -> None:
        super().__init__(name, open_cluster, randomness)
        self._addresses = addresses
        self._counts = counts

    async def _run_once(self, cluster: RecordingCluster) -> None:
        await self._pause(3)
        admin = Admin(cluster)
        quorum = await admin.describe_quorum()
        node_id = self._random.choice(sorted(self._addresses))
        replica = quorum.replica(node_id)
        if replica is None:
            return
        if replica not in quorum.voters:
            endpoint = NodeEndpoint(LISTENER, *self._addresses[node_id])
            await admin.add_voter(node_id, replica.directory_id, endpoint)
            self._counts["voters added"] += 1
        elif len(quorum.voters) > VOTERS_MIN:
            await admin.remove_voter(node_id, replica.directory_id)
            self._counts["voters removed"] += 1
