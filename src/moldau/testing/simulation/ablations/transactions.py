"""Transaction ablations. Each disables one safeguard of transactions in the code under test, and picks a fault profile
in which the safeguard matters. The simulation must then report a violation."""

from collections.abc import Mapping

from moldau.testing.simulation.ablations.cluster import Ablation

# Each comment in the mapping describes the wrong behaviour that the replacement causes.
ABLATIONS: Mapping[str, Ablation] = {}
