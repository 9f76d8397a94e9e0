"""What travels between tasks: parcels of entries, keys, events and changes, cut by shard."""
