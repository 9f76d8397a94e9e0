"""The job of the lender: five operators, five windows.

    loans -> interest -+-> interest by area -> interest of all
                       +-> approval by area -> approval of all

Idea: the interest of a loan is a map; interest against income, and the share of approved loans, are
computed for each area as partial results that windows of ten minutes to a day share; the figures of
all areas are consolidated from those of each. The map and both areas can share one component.
Interest is added up by a function for many loans at once, approval by one for each loan.

References: Madsen, Zhou, Su (2016), section 2, figures 1 to 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import icestream as ice

WINDOWS = ("10 minutes", "30 minutes", "1 hour", "6 hours", "24 hours")

#: results by the name of the folder they are written to
RESULTS = ("interest-by-area", "approval-by-area", "interest-of-all", "approval-of-all")

#: operators that are partitioned by area: partial results, and the windows built from them
BY_AREA = (
    ("interest partials", "interest by area"),
    ("approval partials", "approval by area"),
)

_INTEREST = {"loans": 0, "rates": 0.0, "incomes": 0.0}
_APPROVAL = {"loans": 0, "approved": 0}


def interest(loans: pa.RecordBatch) -> dict[str, Any]:
    """Compute the yearly interest of each loan."""
    gain = pc.divide(pc.subtract(loans["back"], loans["amount"]), loans["amount"])
    years = pc.divide(loans["lendingTime"].cast(pa.float64()), 12.0)
    return {"rate": pc.divide(gain, years)}


def add_interest(state: dict[str, Any], loans: Any) -> list[Any]:
    """Count loans and add up their interest and the applicants' incomes."""
    return [
        state["loans"] + loans.sizes,
        state["rates"] + loans.reduce(np.add, "rate"),
        state["incomes"] + loans.reduce(np.add, "income"),
    ]


def add_approval(state: dict[str, Any], loan: dict[str, Any]) -> dict[str, Any]:
    """Count a loan, and whether it was approved."""
    return {"loans": state["loans"] + 1, "approved": state["approved"] + loan["approval"]}


def merge(partials: Any) -> dict[str, Any]:
    """Add up the partial results of a window."""
    return {name: partials.reduce(np.add, name) for name in partials.rows.schema.names}


def interest_rate(row: dict[str, Any]) -> dict[str, Any]:
    """Average interest and income."""
    return {"rate": row["rates"] / row["loans"], "income": row["incomes"] / row["loans"]}


def approval_rate(row: dict[str, Any]) -> dict[str, Any]:
    """Compute the share of loans that were approved."""
    return {"approval": row["approved"] / row["loans"]}


def lending(stream: ice.Stream) -> dict[str, ice.Tuples]:
    """Return the results of the job by the names of `RESULTS`."""
    rated = ice.job(stream).map(interest, vectorised=True)
    windows: dict[str, Any] = {"windows": WINDOWS, "vectorised": True}
    interests = rated.compute(
        add_interest, key="area", initial=_INTEREST, vectorised=True, name="interest partials"
    ).consolidate(merge, name="interest by area", **windows)
    approvals = rated.compute(
        add_approval, key="area", initial=_APPROVAL, name="approval partials"
    ).consolidate(merge, name="approval by area", **windows)
    interest_of_all = interests.consolidate(merge, key=(), name="interest of all", **windows)
    approval_of_all = approvals.consolidate(merge, key=(), name="approval of all", **windows)
    told = ["area", "loans"]
    return {
        "interest-by-area": interests.map(interest_rate, keeps=told, name="interest rate"),
        "approval-by-area": approvals.map(approval_rate, keeps=told, name="approval rate"),
        "interest-of-all": interest_of_all.map(
            interest_rate, keeps=["loans"], name="global interest rate"
        ),
        "approval-of-all": approval_of_all.map(
            approval_rate, keeps=["loans"], name="global approval rate"
        ),
    }
