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
    """τ of all models on all zoos, tier by tier, the first of each tier bold; the noise ceiling.

    Within a tier in the order of the first zoo, then those that it does not have.
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
            cells = [MODELS[model].title + " (ours)" * _is_ours(model)]
            for comparison, ranking in zip(comparisons, ranked, strict=True):
                text = _mean(comparison, model) if model in ranking else ""
                cells.append(f"**{text}**" if ranking[:1] == [model] else text)
            rows.append(cells)
    rows.append(["*noise ceiling*", *(figure(one.ceiling()) for one in comparisons)])
    return "\n".join(f"|{'|'.join(row)}|" for row in rows)  # no spaces: they are no words


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
    """For each tier in one sentence who is first on which zoo, and whether it is ours."""
    sentences = []
    for tier, what in TIERS.items():
        found: dict[tuple[str, str], list[Comparison]] = {}
        for comparison in comparisons:
            if ranked := in_tier(comparison, tier):
                found.setdefault(_said(comparison, ranked), []).append(comparison)
        said = [f"{who}{_where(there, comparisons)}{rest}" for (who, rest), there in found.items()]
        if said and not any(_is_ours(m) for one in comparisons for m in in_tier(one, tier)):
            said.append("none of these is ours")
        if said:
            sentences.append(f"**{what}**: {'; '.join(said)}.")
    return sentences


def _said(comparison: Comparison, ranked: Sequence[str]) -> tuple[str, str]:
    """What is said of the first of a tier on one zoo: before the zoo's name, and after it."""
    best, *others = ranked
    title = f"{MODELS[best].title} (ours)" if _is_ours(best) else MODELS[best].title
    ours = next((model for model in ranked if _is_ours(model)), None)
    if not others:
        return f"{title} is the only one", ""
    if ours is None:
        return f"{title} is highest", ""
    orders = {other: comparison.order(best, other) for other in others}
    if ours != best:
        return f"{title} is highest", f", {_ORDERS[orders[ours]]} our best, {MODELS[ours].title}"
    # The first is so in the splits that all of the tier have; some pairs have more of them.
    for word in ("behind", "had fewer runs", "not told apart"):
        some = [other for other, order in orders.items() if order == word]
        if some:
            more = f" and {len(some) - 1} more" if len(some) > 1 else ""
            return f"{title} is highest", f", {_ORDERS[word]} {MODELS[some[0]].title}{more}"
    if set(orders.values()) == {"had more runs"}:
        return f"{title} is highest", ", all others had fewer runs"
    alike = ", of all that had as many runs" * ("had more runs" in orders.values())
    only = ", all are ours" * all(map(_is_ours, ranked))
    return f"{title} is first", alike + only


#: How a sentence goes on after what is said of the first of a tier.
_ORDERS = {
    "ahead": "ahead of",
    "behind": "but in the splits that both have behind",
    "had fewer runs": "but in the splits that both have behind, with fewer runs,",
    "had more runs": "with more runs than",
    "not told apart": "not told apart from",
}


def _is_ours(model: str) -> bool:
    return MODELS[model].origin == "ours"


def _where(there: Sequence[Comparison], comparisons: Sequence[Comparison]) -> str:
    """On which zoos: nothing if on all, no track if on both of a zoo."""
    if len(there) == len(comparisons):
        return ""
    names = []
    for zoo in dict.fromkeys(one.zoo for one in there):
        tracks = [one.track for one in there if one.zoo == zoo]
        whole = len(tracks) == sum(one.zoo == zoo for one in comparisons)
        names.append(zoo if whole else f"{zoo} ({' and '.join(tracks)})")
    *first, last = names
    return f" on {', '.join(first)} and {last}" if first else f" on {last}"
