"""Window aggregates whose state is an object: exact quantiles, collections, sketches, your own.

`stored_values`, `choices`, `sketches` and `user_aggregates` implement the `protocol` on `ragged`
arrays; `functions` finds the one for an aggregate. `operator` runs them: `tree` and `directory`
organise states on the log, `states` is their form, `assembly` combines them within the quota,
`ranges` splits batches.
"""
