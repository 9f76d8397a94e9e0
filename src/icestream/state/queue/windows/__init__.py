"""Windows under update semantics: an update is a window, and only the newest one of a key counts.

- `spec`: size, slide and semantics (LAZY, EAGER), and the cost of a window
- `queue`: the queue of windows, whole batches at a time
- `snapshot`: what a queue holds as flat arrays, checked on the way back
"""
