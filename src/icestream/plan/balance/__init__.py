"""Which task runs which shard (`rebalancing`) and how many tasks run (`sizing`), by load."""
