"""Update queues: only the newest value of every key waits, in the order that keeps results fresh.

It works as a library of its own, without Spark:

    queue = UpdateQueue(schema, schedule="inplace")
    queue.enqueue(id_high, id_low, arrived, rows)
    served = queue.dequeue(100, now)
    queue.delivered(served.id_high, served.id_low, at=done)
    queue.staleness(now).application.average

- `arrays`: growing arrays on the heap, with the interface of those in an arena
- `pages`: the pool of pages, and on-demand paging
- `cells`: keys and the addresses of their values
- `order`: the order of one reader: FIFO, IN-PLACE, LINECUTTING
- `staleness`: how old answers were, exactly
- `eviction`, `cold_keys`, `cold_table`, `cold_values`: keys and values that do not fit into memory
- `queue`: the update queue
"""
