"""Who leaves memory: hits of groups in, groups to migrate out.

`classifiers` rank the groups of one sub-query, `targets` say how many bytes each sub-query gives
up, and `manager` meets the targets in small batches. Nothing here reads or writes a group: the
operators' store does, when it is told which ones.
"""

from __future__ import annotations

from icestream.state.cold.classifiers import Classifier, Clock, LeastFrequent, Smoothing
from icestream.state.cold.manager import Manager, Policy, SubQuery
from icestream.state.cold.targets import Load, Targets, excess, spread, targets

__all__ = [
    "Classifier",
    "Clock",
    "LeastFrequent",
    "Load",
    "Manager",
    "Policy",
    "Smoothing",
    "SubQuery",
    "Targets",
    "excess",
    "spread",
    "targets",
]
