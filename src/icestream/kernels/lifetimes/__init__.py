"""Events with lifetimes: pairs that overlap, sweeps over edges, best rows at every time.

`pairs` finds overlaps, `sweep` computes step functions from edges, `top` fills segments of time
with the best rows, and `spans` merges rows over the segments that they span.
"""
