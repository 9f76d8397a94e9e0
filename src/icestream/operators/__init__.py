"""Operators: what each part of a query computes, over Arrow batches and flat arrays.

One room for each kind of operator. `protocol` says what an operator is given and must do;
`folding`, `aggregates` and `object_aggregates` are shared by those that compute aggregates. No
operator knows of Spark, of files or of plans.
"""
