"""In which order zoos and models are shown."""

from collections.abc import Sequence

from transformer_nfn.bench.models.kind import TIERS, Tier
from transformer_nfn.bench.models.registry import model_named
from transformer_nfn.bench.report.scores import Comparison


def in_tier(comparison: Comparison, tier: Tier) -> list[str]:
    """The models of a tier, the best first."""
    return comparison.ranking(models=[m for m in comparison.models if model_named(m).tier == tier])


def ranked_models(comparisons: Sequence[Comparison]) -> list[str]:
    """The models of all, tier by tier: the best of the first first, then those that it lacks."""
    return list(
        dict.fromkeys(
            model for tier in TIERS for one in comparisons for model in in_tier(one, tier)
        )
    )


def shown_place(comparison: Comparison) -> tuple[int, str, str]:
    """Where a comparison is shown: MNIST first, independent before shared starts."""
    order = ("mnist-small", "mnist-good", "agnews-small", "digits-mini")
    place = order.index(comparison.zoo) if comparison.zoo in order else len(order)
    return place, comparison.zoo, comparison.track
