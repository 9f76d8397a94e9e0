"""Where shards run and in how many tasks, decided by measured load."""
