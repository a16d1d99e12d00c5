"""Notes of a person, with figures that the report fills in: none is typed, so none is stale."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.kind import TIERS
from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.report.learning import PAPERS_RUNS, Learning
from transformer_nfn.bench.report.order import in_tier
from transformer_nfn.bench.report.pages.asked import ByZoo
from transformer_nfn.bench.report.scores import Comparison
from transformer_nfn.bench.report.tables import figure, shown
from transformer_nfn.bench.report.within import tau_within

#: `{tau:mnist-small/independent/nfn}`: what is asked for, of which zoo and track, of what there.
_PLACEHOLDER = re.compile(r"\{([a-z]+):([^{}\n]*)\}")


class Known(NamedTuple):
    """What notes may ask of one zoo and track."""

    main: Comparison
    learning: Learning | None
    held_out: Mapping[str, Comparison]  # by what was left out


def read_notes(path: Path) -> str:
    """The text of a notes file.

    Raises:
        BenchError: If it is no text.
    """
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is no Markdown file that can be read: {error}") from None


def filled(
    notes: str,
    comparisons: Sequence[Comparison],
    learnings: Sequence[Learning] = (),
    held_out: ByZoo = MappingProxyType({}),
) -> str:
    """Notes with every placeholder replaced by its figure.

    Args:
        notes: Markdown. `{tau:ZOO/TRACK/MODEL}` is a model's τ, `interval` adds its interval,
            `moved` is τ after a random group element, `within` τ within a configuration, `place`
            the place in its tier; `{gap:ZOO/TRACK/MODEL/OTHER}` is the difference of two and
            `order` says in words what may be said of it; `{first:ZOO/TRACK/TIER}` is the first of a
            tier and `{ceiling:ZOO/TRACK}` the noise ceiling. `grown` is τ that a model's learning
            curve predicts for as many runs as the paper has, `{unseen:ZOO/TRACK/MODEL/KIND}` τ on
            runs of a kind that it did not learn from.
        comparisons: What there is.
        learnings: Models on several sizes of a zoo.
        held_out: What `unseen_kinds` says.

    Raises:
        BenchError: If a placeholder asks for what there is not; it is named.
    """
    grown = {(one.zoo, one.track): one for one in learnings}
    known = {
        f"{one.zoo}/{one.track}": Known(
            one, grown.get((one.zoo, one.track)), held_out.get((one.zoo, one.track), {})
        )
        for one in comparisons
    }

    def fill(found: re.Match[str]) -> str:
        parts = found[2].split("/")
        there, names = known.get("/".join(parts[:2])), parts[2:]
        count, say = _KINDS.get(found[1], (None, None))
        said = None
        if there and say and len(names) == count and _are_there(there, found[1], names):
            said = say(there, *names)
        if said is None:
            zoos = ", ".join(known) or "no zoo"
            raise BenchError(
                f"the notes ask for {found[0]}, which is unknown: there are {', '.join(_KINDS)} of "
                f"{zoos}, and of models that were tested there"
            )
        return said

    return _PLACEHOLDER.sub(fill, notes)


def _are_there(known: Known, kind: str, names: Sequence[str]) -> bool:
    there = list(TIERS) if kind == "first" else known.main.models
    models = names[:1] if kind == "unseen" else names  # the second is what was held out
    return all(name in there for name in models)


def _first(known: Known, tier: str) -> str | None:
    models = [model for one in TIERS if one == tier for model in in_tier(known.main, one)]
    return MODELS[models[0]].title if models else None


def _place(known: Known, model: str) -> str:
    ranked = in_tier(known.main, MODELS[model].tier)
    return f"{ranked.index(model) + 1} of {len(ranked)}"


def _gap(known: Known, model: str, other: str) -> str:
    gap = known.main.difference(model, other)
    return f"{gap.mean:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]"


def _order(known: Known, model: str, other: str) -> str:
    return _ORDERS[known.main.order(model, other)]


_ORDERS = {
    "ahead": "ahead of",
    "behind": "behind",
    "not told apart": "not told apart from",
    "had fewer runs": "lower, but with fewer runs, than",
    "had more runs": "higher, but with more runs, than",
}


def _within(known: Known, model: str) -> str | None:
    tau = tau_within(known.main, model)
    return None if tau is None else f"{tau.mean:.3f}"


def _moved(known: Known, model: str) -> str | None:
    one = known.main
    return f"{one.tau(model, column='moved').mean:.3f}" if one.has_moved(model) else None


def _grown(known: Known, model: str) -> str | None:
    if known.learning is None or model not in known.learning.curves:
        return None
    sizes = known.learning.by_model[model]
    return shown(known.learning.curves[model].at(PAPERS_RUNS)) + _on(known, sizes)


def _unseen(known: Known, model: str, kind: str) -> str | None:
    one = known.held_out.get(kind)
    return shown(one.tau(model)) + _on(known, one) if one and model in one.models else None


def _on(known: Known, asked: Comparison) -> str:
    """Of how many splits a figure is, where the main table has others."""
    count = len(asked.splits)
    return "" if asked.splits == known.main.every_split else f" ({count} split{'s' * (count > 1)})"


#: How many names each takes after zoo and track, and what it says; None if that is not known.
_KINDS: dict[str, tuple[int, Callable[..., str | None]]] = {
    "tau": (1, lambda known, model: f"{known.main.tau(model).mean:.3f}"),
    "interval": (1, lambda known, model: shown(known.main.tau(model))),
    "moved": (1, _moved),
    "within": (1, _within),
    "place": (1, _place),
    "gap": (2, _gap),
    "order": (2, _order),
    "first": (1, _first),
    "ceiling": (0, lambda known: figure(known.main.ceiling()) or None),
    "grown": (1, _grown),
    "unseen": (2, _unseen),
}
