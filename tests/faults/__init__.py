"""Things that go wrong on purpose: disks, bits, processes, tasks, inputs."""
