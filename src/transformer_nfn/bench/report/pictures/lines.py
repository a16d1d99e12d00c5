"""Lines: τ of each model against a threshold or a bound."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from transformer_nfn.bench.protocol.loading import leaving_out
from transformer_nfn.bench.report.pictures.namedlines import (
    LABELS,
    Line,
    apart,
    leader,
    line_picture,
)
from transformer_nfn.bench.report.pictures.style import (
    GREY,
    SMALL,
    mean_tau,
    panel_title,
    sorted_panels,
)
from transformer_nfn.bench.report.scores import Comparison


def by_threshold(comparison: Comparison) -> bytes:
    """τ on the test rows that reach an accuracy, a line for each model.

    The rows that are left out give the places: where most networks are alike good, accuracies
    would stand all in one. The best two have their 95 % interval.

    Raises:
        BenchError: If there is nothing to show, or matplotlib is missing.
    """
    sorted_panels([comparison])
    accuracy = np.concatenate([comparison.accuracy(split) for split in comparison.every_split])
    lowest, *others = sorted(comparison.thresholds, key=lambda one: one.accuracy)
    chosen = [lowest, *leaving_out(others, accuracy)]
    places = [100 * float((accuracy < threshold.accuracy).mean()) for threshold in chosen]
    taus = {
        model: [mean_tau(comparison, model, threshold) for threshold in chosen]
        for model in comparison.models
    }
    best = comparison.ranking()[:2]
    lines = [
        Line(
            model,
            places,
            values,
            [comparison.tau(model, threshold) for threshold in chosen] if model in best else None,
        )
        for model, values in taus.items()
    ]
    ceilings = [comparison.ceiling(threshold) for threshold in chosen]
    ceiling = [value for value in ceilings if value is not None]

    def prepare(axes: Any) -> None:
        axes.set_xlabel("test rows left out, lowest accuracy first, %")
        top = axes.get_xaxis_transform()
        fractions = [(place - places[0]) / ((places[-1] - places[0]) or 1) for place in places]
        names = ["all", *(f"≥ {100 * threshold.accuracy:.3g}" for threshold in chosen[1:])]
        for place, fraction, name in zip(places, apart(fractions, 0.085), names, strict=True):
            axes.annotate(
                name,
                (place, 1),
                (places[0] + fraction * (places[-1] - places[0]), 1.035),
                xycoords=top,
                textcoords=top,
                ha="center",
                va="bottom",
                fontsize=SMALL,
                color=GREY,
                arrowprops=leader((0.5, 0.0)) | {"shrinkA": 1, "shrinkB": 1},
            )
            axes.axvline(place, color="#ececec", linewidth=0.8, zorder=0)
        axes.text(
            LABELS,
            1.035,
            "% accuracy",
            transform=axes.transAxes,
            va="bottom",
            fontsize=SMALL,
            color=GREY,
        )
        axes.set_title(panel_title(comparison), loc="left", pad=38)  # above these shares

    return line_picture(
        lines,
        prepare,
        (places, ceiling) if len(ceiling) == len(places) else None,
    )


def augmentation(by_bound: Mapping[str, Comparison]) -> bytes:
    """τ on zoos to which copies moved by the group were added, a line for each model.

    The best two have their 95 % interval.

    Args:
        by_bound: Comparisons by what bounds the random matrices, in the order shown: "original",
            "±1", "±10", "±100".

    Raises:
        BenchError: If there is nothing to show, or matplotlib is missing.
    """
    sorted_panels(list(by_bound.values()))
    names = list(dict.fromkeys(model for one in by_bound.values() for model in one.models))
    taus = {
        model: {
            float(place): mean_tau(comparison, model)
            for place, comparison in enumerate(by_bound.values())
            if model in comparison.models
        }
        for model in names
    }
    best = sorted(names, key=lambda model: -float(np.mean(list(taus[model].values()))))[:2]
    lines = [
        Line(
            model,
            list(taus[model]),
            list(taus[model].values()),
            [one.tau(model) for one in by_bound.values() if model in one.models]
            if model in best
            else None,
        )
        for model in names
    ]

    def prepare(axes: Any) -> None:
        axes.set_xticks(range(len(by_bound)), list(by_bound))
        axes.tick_params(axis="x", labelsize=12, length=0)
        axes.set_title(panel_title(next(iter(by_bound.values()))), loc="left", pad=14)
        axes.set_xlabel("entries of the random matrices that moved the added copies")

    return line_picture(lines, prepare, None)
