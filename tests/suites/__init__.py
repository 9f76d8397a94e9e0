"""Suites that operators and stores must pass, and the stages they are tried on."""
