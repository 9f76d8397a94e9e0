"""Update queues: cells and pages of keys, the order of service, staleness, prices."""
