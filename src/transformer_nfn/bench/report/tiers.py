"""Models in tiers, by what they are given: figures at a glance, and who is first in each."""

from collections.abc import Sequence

from transformer_nfn.bench.models.kind import TIERS
from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.report.order import in_tier, ranked_models
from transformer_nfn.bench.report.pages.page import file_name
from transformer_nfn.bench.report.scores import Comparison
from transformer_nfn.bench.report.tables import figure


def column_name(comparison: Comparison) -> str:
    """What a comparison is called where many stand side by side."""
    return f"{comparison.zoo}, {comparison.track}"


def overview_table(comparisons: Sequence[Comparison]) -> str:
    """τ of all models on all zoos, tier by tier, and the noise ceiling.

    The first of each tier is bold, what is not told apart from it in italics. Within a tier in the
    order of the first zoo, then those that it does not have.
    """
    header = ["model", *(_linked(one) for one in comparisons)]
    rows = [header, ["---"] * len(header)]
    every = ranked_models(comparisons)
    for tier, what in TIERS.items():
        ranked = [in_tier(comparison, tier) for comparison in comparisons]
        models = [model for model in every if MODELS[model].tier == tier]
        if models:
            rows.append([f"*{what}*", *[""] * len(comparisons)])
        for model in models:
            cells = [_named(model)]
            for comparison, ranking in zip(comparisons, ranked, strict=True):
                cells.append(_cell(comparison, model, ranking) if model in ranking else "")
            rows.append(cells)
    rows.append(["*noise ceiling*", *(figure(one.ceiling()) for one in comparisons)])
    rows.append(["*splits; configurations tested*", *map(_tested, comparisons)])
    return "\n".join(f"|{'|'.join(row)}|" for row in rows)  # no spaces: they are no words


def _tested(comparison: Comparison) -> str:
    return f"{len(comparison.every_split)}; {comparison.configurations():,}"


def _cell(comparison: Comparison, model: str, ranking: Sequence[str]) -> str:
    text = _mean(comparison, model)
    if model == ranking[0]:
        return f"**{text}**"
    return f"*{text}*" if comparison.order(ranking[0], model) == "not told apart" else text


def _mean(comparison: Comparison, model: str) -> str:
    """τ, and of how many splits and among how many runs if others have more."""
    said, count = [], len(comparison.splits_of(model))
    if count < len(comparison.every_split):
        said.append(str(count))
    if (runs := comparison.train_runs(model)) is not None:
        said.append(f"{runs:,} runs")
    return figure(comparison.tau(model).mean) + (f" ({'; '.join(said)})" if said else "")


def _linked(comparison: Comparison) -> str:
    page = f"{file_name(comparison.zoo, comparison.track)}.md"
    return f"[{column_name(comparison)}]({page})"


def tier_sentences(comparisons: Sequence[Comparison]) -> list[str]:
    """Who is first on which zoo in each tier of several models, and whether it is ours."""
    sentences = []
    for tier, what in TIERS.items():
        found: dict[tuple[str, str], list[Comparison]] = {}
        for comparison in comparisons:
            ranked = in_tier(comparison, tier)
            if len(ranked) > 1:
                found.setdefault(_said(comparison, ranked), []).append(comparison)
        said = [f"{who}{where(there, comparisons)}{rest}" for (who, rest), there in found.items()]
        if said and not any(_is_ours(m) for one in comparisons for m in in_tier(one, tier)):
            said.append("none of these is ours")
        if said:
            sentences.append(f"**{what}**: {'; '.join(said)}.")
    return sentences


def _said(comparison: Comparison, ranked: Sequence[str]) -> tuple[str, str]:
    """What is said of the first of a tier on one zoo: before the zoo's name, and after it."""
    best, *others = ranked
    title = _named(best)
    orders = {other: comparison.order(best, other) for other in others}
    # The first is so in the splits that all of the tier have; some pairs have more of them.
    but = [
        f"{said} {' and '.join(better)}"
        for word, said in _BUT.items()
        if (better := [MODELS[other].title for other in others if orders[other] == word])
    ]
    if but:
        return f"{title} is highest", f", but in the splits of each pair {' and '.join(but)}"
    if "not told apart" in orders.values():
        return f"{title} is highest", ""
    if set(orders.values()) == {"had more runs"}:
        return f"{title} is highest", ", all others had fewer runs"
    alike = ", of all that had as many runs" * ("had more runs" in orders.values())
    return f"{title} is first", alike + ", all are ours" * all(map(_is_ours, ranked))


def _named(model: str) -> str:
    return MODELS[model].title + " (ours)" * _is_ours(model)


#: What is said of the highest where others are better in all splits that a pair has.
_BUT = {"behind": "behind", "had fewer runs": "behind, with fewer runs,"}


def _is_ours(model: str) -> bool:
    return MODELS[model].origin == "ours"


def where(there: Sequence[Comparison], comparisons: Sequence[Comparison]) -> str:
    """On which zoos: nothing if on all, no track if on both of a zoo."""
    if len(there) == len(comparisons):
        return ""
    names = []
    for zoo in dict.fromkeys(one.zoo for one in there):
        tracks = [one.track for one in there if one.zoo == zoo]
        whole = len(tracks) == sum(one.zoo == zoo for one in comparisons)
        names.append(zoo if whole else f"{zoo} ({' and '.join(tracks)})")
    return f" on {listed(names)}"


def listed(names: Sequence[str]) -> str:
    """Names as in a sentence."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
