"""Joins of several streams: resident rows, rows on their way, results owed by generations."""
