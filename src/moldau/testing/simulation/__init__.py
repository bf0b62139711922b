"""Deterministic simulation of whole nodes on a simulated event loop, network and disk. A seed repeats its run."""

from moldau.testing.simulation.platform.simulation import Host, HostCrashed, Simulation

__all__ = ["Host", "HostCrashed", "Simulation"]
