"""Deterministic simulation: whole nodes on a virtual loop, network and disk; one seed gives one run, exactly."""

from moldau.testing.simulation.platform.simulation import Host, HostCrashed, Simulation

__all__ = ["Host", "HostCrashed", "Simulation"]
