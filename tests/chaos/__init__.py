"""Real nodes under real faults: processes in network namespaces, each with a small disk of its own."""
