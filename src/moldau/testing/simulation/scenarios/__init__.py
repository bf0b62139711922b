"""Scenarios: nodes, faults and workloads of one simulated run."""
