"""Workloads: clients that generate load in a scenario."""
