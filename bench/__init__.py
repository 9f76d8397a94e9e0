"""Measurements of what the documentation claims, one file per claim, run by `python -m bench`.

Idea: a claim is a module with a `CASES` table, `measure()` and, kept apart, `plot()`; it exports
them as one `BENCH` and is named in `registry.MODULES`. Claims live in rooms by subject (`windows`,
`cold`, `joins`, `updates`, `adaptation`, `safety`), beside what only they need. What all share is
here: `harness` (machine, commit, JSON), `command` (terminal), `processes` (a system in a process of
its own), `rows` (events as a function of their number), `peers` (other systems).
"""
