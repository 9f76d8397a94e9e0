"""SQL: expressions with Spark's meaning, statements as queries, and schemas as text.

`expressions` evaluates Spark's SQL expressions over Arrow batches, below the operators;
`statements` turns the text of a query into calls of the API, above everything; `ddl` reads schemas.
"""
