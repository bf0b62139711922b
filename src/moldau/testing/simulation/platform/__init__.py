"""The simulated platform: event loop, clock, disk and network, all driven by one seed."""
