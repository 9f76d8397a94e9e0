"""What cold state costs: groups beyond memory, user code, recommendations."""
