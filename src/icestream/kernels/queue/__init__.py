"""Update queues: cells and pages of keys, the order of service, staleness, prices.

`queue` has the operations on one update, `update_batches` those on many.
"""
