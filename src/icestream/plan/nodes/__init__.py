"""Queries as pure data: over windows (`queries`), `events`, `updates` and `jobs`; `spilling`."""
