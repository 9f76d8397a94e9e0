"""Inputs and plans for tests: events, streams, joins, jobs, checkpoints, in a line or two."""
