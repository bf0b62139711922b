"""Deterministic simulation of nodes on a simulated event loop, network and disk. The same seed gives the same run."""

from moldau.testing.simulation.platform.simulation import Host, HostCrashed, Simulation

__all__ = ["Host", "HostCrashed", "Simulation"]
