"""Every aggregate function whose state is words, by name.

Names are those of `pyspark.sql.functions`, where it has the function.
"""

from __future__ import annotations

from icestream.operators.aggregates.choices import ByOrdering, ByTime, Extreme
from icestream.operators.aggregates.moments import Comoment, Moment
from icestream.operators.aggregates.protocol import WordFunction
from icestream.operators.aggregates.sums import Average, Count, CountIf, Sum
from icestream.operators.aggregates.weighted import WeightedAverage

WORD_FUNCTIONS: dict[str, WordFunction] = {
    "count": Count(),
    "sum": Sum(),
    "avg": Average(),
    "min": Extreme("min"),
    "max": Extreme("max"),
    "var_pop": Moment(),
    "var_samp": Moment(sample=True),
    "stddev_pop": Moment(root=True),
    "stddev_samp": Moment(sample=True, root=True),
    "count_if": CountIf(),
    "bool_and": Extreme("min", booleans=True),
    "bool_or": Extreme("max", booleans=True),
    "first": ByTime("first"),
    "last": ByTime("last"),
    "covar_pop": Comoment(),
    "covar_samp": Comoment(sample=True),
    "corr": Comoment(relative=True),
    "weighted_avg": WeightedAverage(),
    "min_by": ByOrdering("least_by"),
    "max_by": ByOrdering("most_by"),
}
