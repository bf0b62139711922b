"""The features of the cluster, whose levels all nodes must support."""

from collections.abc import Mapping
from types import MappingProxyType

METADATA_VERSION = "metadata.version"
ELR_VERSION = "eligible.leader.replicas.version"
TRANSACTION_VERSION = "transaction.version"

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = MappingProxyType(
    {METADATA_VERSION: (30, 30), ELR_VERSION: (1, 1), TRANSACTION_VERSION: (0, 2)}
)
"""The lowest and highest supported level of each feature.

metadata.version 30 is Kafka's 4.3-IV0 and determines the record versions. Eligible leader replicas cannot be disabled.
Clusters that were created by earlier versions have them too, but not the level of the feature: there the brokers may
have different values of min.insync.replicas, which is not allowed with the feature.
"""
