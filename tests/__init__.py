"""Tests, and what they stand on: oracles, faults, suites and fixtures."""
