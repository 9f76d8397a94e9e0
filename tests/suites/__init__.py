"""Suites that operators and stores must pass, and crash runs for dataflows."""
