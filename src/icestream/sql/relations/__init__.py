"""Statements as relations: a pure tree, without Spark.

`tree` has the relations, `names` resolves columns by scope. `read` turns the syntax of a statement
into a tree, with `brackets`, `expressions`, `nested`, `group_by` and `select_list` for its parts;
`rules` rewrite it, `times` finds what conditions say about event times, and `show` prints it.
`icestream.sql.lowering` turns a tree into a query.
"""
