"""Update streams: staleness of results, and the cost of queues."""
