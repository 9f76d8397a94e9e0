"""Window aggregates on several simulated nodes in one process, with key groups that move."""
