"""Operators of jobs: `map`, `compute` and `consolidate` as functions that users write."""
