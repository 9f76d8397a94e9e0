"""Operators over update streams: only the newest value of a key matters.

`update_stream` defines such streams; `rowwise`, `union` and `join` are their operators, which
`pre_queue` runs as a tree before the queue. `serving` takes updates and serves waiting keys within
a time budget, `window_serving` does so for windows; `waiting_keys` is the queue, `step` the user's
function, `pacing` decides how much is served. `serving_log` and `saved_arrays` write state;
`staleness_totals` and `report` measure.
"""
