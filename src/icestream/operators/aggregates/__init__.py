"""Aggregate functions over windows: their state, their results and their input types.

Idea: a function has three steps. *lift* chooses the fields that events are folded into; *combine*
merges fields and belongs to the field's operation, not to the function (`kernels.field_words`);
*lower* computes the answer from merged fields. Removing events is a separate capability of an
operation (`kernels.field_words.is_invertible`): operators subtract only fields that have it.
Functions whose state has no fixed width are only named here; `operators.object_aggregates` computes
them.

Invariants:
1. Results have Spark's types and Spark's nulls (`test_oracle_every_aggregate_equals_duckdb`, and
   the Spark comparison in `tests/runtime/test_spark_oracle.py`).
2. Sums of integers and decimals are exact; an overflow of the result type is an error, never a
   wrapped number (`test_sum_that_overflows_bigint_is_an_error`).
3. Sums of doubles are exact and results are rounded once, so they depend neither on the order of
   events nor on values that left (`test_float_sums_do_not_remember_values_that_left`).
4. Choices by order (`first`, `last`, `min_by`, `max_by`) depend on times and arrival alone, not on
   how events were batched (`test_oracle_choices_do_not_depend_on_grouping`).

Limits: `sum`/`avg` of decimals take up to 28 digits; `min`, `max` and choices take types of fixed
width (decimals up to 18 digits).

References: lift, combine and lower (Tangwongsan et al., General Incremental Sliding-Window
Aggregation, 2015).
"""
