"""A local page that shows running and ended queries, from their histories.

`history_reader` follows a history, `query_list` collects queries, `drawing` and `metrics` prepare
plans and numbers, `server` serves the page; the command is `icestream.commands.ui`.
"""
