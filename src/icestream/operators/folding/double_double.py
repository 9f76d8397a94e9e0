"""Products and quotients of double-doubles, over whole columns.

Idea: a double-double is a float and the part of the exact value that did not fit into it. Products
of two floats are exact in this form; later losses are about 100 bits down.

References: Dekker's splitting for error-free products.
"""

from __future__ import annotations

from icestream.core.arrays import Floats

#: high and low part
Pair = tuple[Floats, Floats]


def two_product(a: Floats, b: Floats) -> Pair:
    """Return the exact product of floats as double-doubles."""
    product = a * b
    ca, cb = 134217729.0 * a, 134217729.0 * b
    a1, b1 = ca - (ca - a), cb - (cb - b)
    a2, b2 = a - a1, b - b1
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def product_over(a: Pair, b: Pair, count: Floats) -> Pair:
    """Return the product of two double-doubles divided by a count."""
    product, error = two_product(a[0], b[0])
    error = error + (a[0] * b[1] + a[1] * b[0])
    quotient = product / count
    back, back_error = two_product(quotient, count)
    return quotient, ((product - back) - back_error + error) / count
