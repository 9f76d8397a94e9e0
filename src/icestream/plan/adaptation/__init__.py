"""Adaptation of running queries as pure decisions; see `plan.fuse` and `plan.balance`."""
