"""Measurements of the documentation's claims, one file per claim, run by `python -m bench`.

Idea: a claim is a module with a `CASES` table, `measure()` and, separately, `plot()`; it exports
them as one `BENCH` and is listed in `registry.MODULES`. Claims are in folders by subject
(`windows`, `cold`, `joins`, `updates`, `adaptation`, `safety`), next to what only they need.
`research` has what the papers measured and no query uses. Shared modules are here: `harness`
(machine, commit, JSON), `command` (terminal), `processes` (a system in a process of its own),
`rows` (events as a function of their number), `peers` (other systems).
"""
