"""Looking at checkpoints: what state they hold, whether they are intact, what can be saved.

`checkpoint` opens one, `reading` yields the rows of its state through an adapter for each kind of
operator, `verify` checks every byte and reference, `repair` saves what is intact.
"""
