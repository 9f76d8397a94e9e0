"""Measurements of what the documentation claims, one file per claim, run by `icestream bench`.

Idea: a claim is a module with a `CASES` table, `measure()` and, kept apart, `plot()`; it exports
them as one `BENCH` and is named in `registry.MODULES`. Everything else here is shared: `harness`
(machine, commit, JSON), `command` (terminal), `processes` (a system in a process of its own),
`peers` (other systems).
"""
