"""`icestream demo`: the call centres (`call_centre`), and what all demos share.

`running`, `replay` and `randomness` generate streams and run queries over them;
`progress` and `results` show them. `examples/` uses them too.
"""
