"""How the neural models of the benchmark are trained: the same search for each of them.

`tools/fits.py` fits each model with each of the candidates to one split of a zoo that is in no
table; the one with the highest τ on validation is written down here, once for each such zoo. All
figures of the searches are in docs/results/fits.
"""

from collections.abc import Mapping
from itertools import product
from types import MappingProxyType

from transformer_nfn.bench.models.neural import Fitting

#: What all candidates share: a scale for each tensor, a cosine, and a mean of parameters instead of
#: the epoch that did best on a few validation runs. Probes answer as functions, and the graph of
#: heads learns what is usual itself: neither reads weights that could be scaled.
_COMMON = Fitting(epochs=50, warmup=5, schedule="cosine", keep="average", scaled=True)
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
DECAYS = (0.0, 0.1)
UNSCALED = ("probes", "probegen", "heads")

#: Task and starts of the networks on which a search was made.
Searched = tuple[str, str]
#: The search of all models, which counts where no other was made.
USUAL: Searched = ("mnist", "independent")
#: Learning rate and weight decay of each model, by search. How networks began is in their weights
#: alone: with one start for all, what does not read weights was not searched again.
CHOSEN: Mapping[Searched, Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        USUAL: {
            "nfn": (1e-2, 0.0),
            "mlp": (1e-3, 0.1),
            "statnn": (3e-3, 0.0),
            "tokens": (3e-2, 0.0),
            "probes": (3e-2, 0.1),
            "probegen": (1e-2, 0.0),
            "heads": (3e-3, 0.0),
        },
        ("ag_news", "shared"): {
            "nfn": (3e-4, 0.0),
            "mlp": (1e-3, 0.0),
            "statnn": (1e-2, 0.1),
            "tokens": (1e-2, 0.1),
            "heads": (1e-3, 0.0),
        },
    }
)
NEURAL = tuple(CHOSEN[USUAL])
#: The authors' published code: 100 epochs, a cosine after 10 of warm-up, no epoch chosen. Their
#: initial scales are not ours: see docs/understand/paper.md.
AUTHORS = Fitting(epochs=100, warmup=10, schedule="cosine", keep="last")


def fitting_of(model: str, rate: float, decay: float) -> Fitting:
    """One of the candidates."""
    changes = {"lr": rate, "weight_decay": decay, "scaled": model not in UNSCALED}
    return _COMMON.model_copy(update=changes)


def candidates(model: str) -> list[Fitting]:
    """All that are tried for a model: the same number for each."""
    return [fitting_of(model, rate, decay) for rate, decay in product(RATES, DECAYS)]


def chosen(model: str, searched: Searched = USUAL) -> Fitting:
    """How a model of the tables is fitted, by one of the searches."""
    return fitting_of(model, *CHOSEN[searched][model])
