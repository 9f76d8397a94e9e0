"""What joins cost: two streams, several, and plans that spill and clean up."""
