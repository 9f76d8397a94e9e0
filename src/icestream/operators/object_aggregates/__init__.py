"""Window aggregates whose state is an object: exact quantiles, collections, sketches, your own.

`functions` defines the protocol; `stored_values`, `choices`, `sketches` and `user_aggregates`
implement it on `ragged` arrays. `operator` runs them: `tree` and `directory` organise states on the
log, `states` is their form, `assembly` combines them within the quota, `ranges` splits batches.
"""
