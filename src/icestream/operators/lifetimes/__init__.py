"""Operators over events with lifetimes: changes in, changes out, state by group.

`changes` says what travels between them; `join`, `difference`, `aggregate` and `top` compute.
"""
