"""The cost of joins: two streams, several, and plans that spill and clean up."""
