"""Versions: made by shards, committed by the driver, told in progress and history."""
