"""What windows cost: overlap, raw events on disk, sharing, input, and the choice between plans."""
