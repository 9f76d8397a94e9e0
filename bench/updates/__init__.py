"""How stale answers are, and what queues of updates cost."""
