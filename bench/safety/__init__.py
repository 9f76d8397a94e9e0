"""Safety: crashes, damage, fuzzed input, budgets, and half an hour of everything."""
