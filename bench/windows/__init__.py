"""The cost of windows: overlap, raw events on disk, sharing, input, and the choice of plan."""
