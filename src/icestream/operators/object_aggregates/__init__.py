"""Window aggregates whose state is an object: exact quantiles, collections, sketches, your own.

`functions` defines the protocol; `values`, `choices`, `sketches` and `user_aggregates` implement it
on `ragged` arrays. `operator` runs them: `tree` and `directory` organise states on the log,
`states` is their form, `assembly` combines them in bounded memory, `ranges` splits large batches.
"""
