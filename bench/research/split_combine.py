"""Whether computing and consolidating should be one component or two, by their cost.

Idea: split, partial results are sent between the two all the time, but a key group moves without
its state and without a pause. Combined, nothing is sent, but a key group moves with all its panes,
and pauses. Over the longest window, with T tuples of cost E each, W windows, P panes, G key groups
of which M are moved, cost S to send, C to merge into one window, and K to move one pane of a key
group:

                 as printed                         with panes shared in both
    split        T E + P G K + M K                  T E + P G (S + W C) + M S
    combined     T W E + M P K                      T E + P G W C + M P K
    pause        split 0, combined M L              the same

In the printed form, only the split component shares work between windows; here a combined one does,
too. The printed form leaves out the cost of consolidation, which with many windows is most of it.
And it equates sending and moving, while sending is a copy in the background and moving, with
markers, costs almost nothing.

Invariants:
1. The printed formulas are those of the text (`test_the_printed_formulas_come_out`).
2. With one window, one cost for both and nothing to consolidate, the two forms agree
   (`test_both_forms_agree_where_nothing_is_shared`).
3. The cheaper shape within the bound on pauses is chosen
   (`test_oracle_the_cheaper_allowed_is_chosen`).
4. Between two evaluations nothing changes, and a change must save the given share
   (`test_components_are_looked_at_once_per_period`).

References: Madsen, Zhou, Su (2016), sections 5.1.1 and 5.1.2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from icestream.core.errors import DefinitionError
from icestream.core.times import Micros


class ComponentShape(StrEnum):
    """One component or two."""

    SPLIT = "split"
    COMBINED = "combined"


class Form(StrEnum):
    """The formulas used."""

    PRINTED = "printed"
    SHARED_PANES = "shared panes"


@dataclass(frozen=True)
class ComponentStatistics:
    """Measurements of a component over its longest window; costs in one unit, like seconds."""

    #: rows that came in
    tuples: float
    #: cost of the user's logic for a row
    execution: float
    #: windows that a row is in
    windows: float
    #: panes, or partial windows
    panes: float
    key_groups: int
    #: key groups that were moved for balance
    moved: float
    #: cost to send the partial result of one pane of a key group, in the background
    sending: float
    #: cost to move the state of one pane of a key group
    moving: float
    #: seconds that a key group pauses when it moves with its state
    pause: float
    #: cost to merge the partial result of one pane of a key group into one window
    consolidating: float = 0.0


@dataclass(frozen=True)
class ShapeCosts:
    """The costs of both shapes, in the unit of the statistics, and their pauses in seconds."""

    cost: Mapping[ComponentShape, float]
    pause: Mapping[ComponentShape, float]

    def choice(self, longest_pause: float) -> ComponentShape:
        """Return the cheaper shape whose pause is within the bound; a split one never pauses."""
        allowed = [shape for shape in ComponentShape if self.pause[shape] <= longest_pause]
        return min(allowed or [ComponentShape.SPLIT], key=lambda shape: self.cost[shape])


def account(measured: ComponentStatistics, form: Form) -> ShapeCosts:
    """Return the costs of both shapes by one form of the formulas."""
    m = measured
    once = m.tuples * m.execution
    if form is Form.PRINTED:
        # the same cost for both: that of moving
        split = once + m.panes * m.moving * m.key_groups + m.moved * m.moving
        combined = once * m.windows + m.moved * m.moving * m.panes
    else:
        once += m.panes * m.key_groups * m.windows * m.consolidating
        split = once + m.panes * m.sending * m.key_groups + m.moved * m.sending
        combined = once + m.moved * m.moving * m.panes
    return ShapeCosts(
        {ComponentShape.SPLIT: split, ComponentShape.COMBINED: combined},
        {ComponentShape.SPLIT: 0.0, ComponentShape.COMBINED: m.moved * m.pause},
    )


@dataclass(frozen=True)
class ShapeChange:
    """A component that should take another shape."""

    component: str
    shape: ComponentShape
    #: cost that is saved per longest window; negative if the bound on pauses requires the change
    gain: float


class Evaluation:
    """Evaluates every component once per period and returns the changes to make."""

    def __init__(
        self,
        *,
        longest_pause: float,
        form: Form = Form.SHARED_PANES,
        least_gain: float = 0.05,
    ) -> None:
        """Decide within a bound on pauses.

        Args:
            longest_pause: seconds per longest window that a component may pause.
            form: the formulas to use.
            least_gain: share of its cost that a change must save, unless the bound requires it.
        """
        if longest_pause < 0 or least_gain < 0:
            msg = f"longest_pause ({longest_pause}) and least_gain ({least_gain}) must be >= 0"
            raise DefinitionError(msg)
        self._longest_pause = longest_pause
        self._form = form
        self._least_gain = least_gain
        self._looked: dict[str, Micros] = {}

    def due(self, component: str, now: Micros, longest: Micros) -> bool:
        """Return whether a component with this longest window should be evaluated."""
        return now - self._looked.setdefault(component, now) >= longest

    def changes(
        self,
        now: Micros,
        shapes: Mapping[str, ComponentShape],
        measured: Mapping[str, ComponentStatistics],
        *,
        splittable: Mapping[str, bool],
    ) -> list[ShapeChange]:
        """Return the changes to the measured components, best gain first.

        Args:
            now: the current time.
            shapes: the shape of each component.
            measured: statistics of the components that are due.
            splittable: whether the next component allows each of them to be split.
        """
        found = []
        for name, statistics in measured.items():
            self._looked[name] = now
            both = account(statistics, self._form)
            here, wanted = shapes[name], both.choice(self._longest_pause)
            if wanted is here or (wanted is ComponentShape.SPLIT and not splittable[name]):
                continue
            gain = both.cost[here] - both.cost[wanted]
            forced = both.pause[here] > self._longest_pause
            if forced or gain > self._least_gain * both.cost[here]:
                found.append(ShapeChange(name, wanted, gain))
        return sorted(found, key=lambda change: (-change.gain, change.component))
