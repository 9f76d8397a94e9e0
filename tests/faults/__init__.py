"""Faults injected on purpose: into disks, bits, processes, tasks and inputs."""
