"""A checkpoint opened for looking: its versions, its shards, and rows that somebody edited."""
