"""Operators: what each part of a query computes, over Arrow batches and flat arrays.

There is one folder for each kind of operator. `protocol` defines what an operator receives and what
it must do; `logged_operator` is what operators share that restore themselves from a log of their
own; `folding`, `aggregates` and `object_aggregates` are shared by all operators that aggregate. No
operator knows about Spark, files or plans.

- `grid`: windows on a grid of panes (tumbling, hopping, sliding)
- `frames`: windows that move with the events
- `session`: windows closed by a gap
- `lifetimes`: events with a start and an end: aggregate, join, difference, top-k
- `multi_join`: the n-way join on one key, which spills
- `process`: functions of the user with state and timers
- `latest`: only the newest update of each key, served within a budget
- `dataflow`: a graph of such operators as one component
- `jobs`: the user's functions `map`, `compute` and `consolidate`
"""
