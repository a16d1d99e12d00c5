"""Pairs with the smallest sum of costs."""

import numpy as np
from jaxtyping import Int64


def linear_sum_assignment(
    cost: np.ndarray, *, maximize: bool = False
) -> tuple[Int64[np.ndarray, " k"], Int64[np.ndarray, " k"]]:
    """That of scipy, which takes half a second to import: most commands that import us need none.

    Args:
        cost: A row and a column for each of those that are paired.
        maximize: Take the largest sum instead.

    Returns:
        Rows, and the column of each.
    """
    from scipy.optimize import linear_sum_assignment as assignment  # type: ignore[import-untyped]

    rows, columns = assignment(cost, maximize=maximize)
    return rows, columns
