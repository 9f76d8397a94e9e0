"""What a query computes, as the runtime sees it: windows, a dataflow, or update steps.

All three have sources, views and key groups, move the watermark, say when events are late and when
all effects of one are settled, and describe themselves as JSON for the checkpoint.
"""

from __future__ import annotations

from icestream.plan.events.dataflow import Dataflow
from icestream.plan.nodes.queries import Plan
from icestream.plan.nodes.updates import Updates

Computation = Plan | Dataflow | Updates
