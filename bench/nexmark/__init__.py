"""Nexmark: the auction benchmark of streaming engines, its events and its statements.

`events` makes the events, `statements` has the queries as published, `answers` computes them with
DuckDB over the same finite data, `running` runs them, and `nexmark` is the bench.
"""
