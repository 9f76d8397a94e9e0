"""Which ad a user is likely to click, learnt from what they and others did in the last hours."""
