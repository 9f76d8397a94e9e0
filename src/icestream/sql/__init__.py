"""SQL: expressions with Spark's meaning, statements as queries, and schemas as text.

`expressions` evaluates Spark's SQL expressions over Arrow batches, below the operators;
`ddl` reads schemas. `statements` turns the text of a query with windows in brackets into calls of
the API; `relations` reads any other statement as a tree, which `lowering` turns into a query.
"""
