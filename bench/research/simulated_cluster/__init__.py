"""Window aggregates on several nodes of one process, whose key groups move while rows come."""
