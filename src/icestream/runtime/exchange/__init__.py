"""The data sent between tasks: parcels of entries, keys, events and changes, divided by shard.

`parcels` has the writer and reader, `change_sender` sends changes to later components.
"""
