"""The pages of a report that go beyond the paper: larger zoos, and other zoos."""

from collections.abc import Sequence

from transformer_nfn.bench.models.registry import MODELS
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.report import pictures
from transformer_nfn.bench.report.across import transfer_table, transfers
from transformer_nfn.bench.report.learning import Learning, learning_table
from transformer_nfn.bench.report.pages.page import (
    Page,
    build_command,
    fenced,
    file_name,
    options_of,
    spelled,
    splits_of,
)


def sizes_page(page: Page, found: Sequence[Learning]) -> str | None:
    """τ as the zoo grows; None if no model was trained on two sizes."""
    parts = []
    for learning in sorted(found, key=lambda one: not one.zoo.startswith("mnist")):
        whole = learning.sizes[-1]
        parts += [
            f"## {learning.zoo}, {learning.track} starts, up to {whole:,} runs",
            _commands(page, learning),
            learning_table(learning),
            *_back_tests(learning),
            *_falling(learning),
            page.picture(
                f"sizes-{file_name(learning.zoo, learning.track)}-{whole}.png",
                "τ against the number of runs",
                pictures.by_size(learning),
            ),
        ]
    return _page("Learning curves", _SIZES, parts)


def _back_tests(learning: Learning) -> list[str]:
    tested = learning.back_tests()
    if not tested:
        return []
    missed = [MODELS[model].title for model, hit in tested.items() if not hit]
    of = f"{len(missed)} of {len(tested)} models"
    named = f": {', '.join(missed)}" if missed else ""
    return [f"The last size is outside the predicted interval for {of}{named}."]


def _falling(learning: Learning) -> list[str]:
    models = [MODELS[model].title for model in learning.models if learning.falls(model)]
    if not models:
        return []
    return [
        f"The curve ends below the largest size measured, so it fits badly: {', '.join(models)}."
    ]


def _commands(page: Page, learning: Learning) -> str:
    """What computes the sizes: an experiment of its own, or for costly models size by size."""
    zoo_runs = next(iter(learning.by_model.values())).record["zoo_runs"]
    alike: dict[tuple[tuple[int, ...], tuple[int, ...]], list[str]] = {}
    for model in learning.models:
        comparison, sizes = learning.by_model[model], learning.sizes_of(model)
        smaller = () if sizes[-1] == zoo_runs else tuple(sizes)
        alike.setdefault((tuple(comparison.splits), smaller), []).append(model)
    first = next(iter(learning.by_model.values()))
    lines = [build_command(first.record)]
    for (splits, smaller), models in alike.items():
        asked = [f"--train-runs {size}" for size in smaller] or ["--experiment sizes"]
        lines += [
            f"tnfn bench run --zoo {first.record['folder']} --splits {spelled(splits)}"
            f"{options_of(first.record)} {one} --models {','.join(models)} --out {page.out}"
            for one in asked
        ]
    return fenced(lines)


def transfer_page(page: Page, cells: Sequence[Finished]) -> str | None:
    """τ on other zoos; None if no model was tested on one."""
    parts = []
    for transfer in transfers(cells, list(MODELS)):
        whole = transfer.whole
        record = whole.record
        rows, runs = record["test_rows"], record["test_zoo_runs"]
        parts += [
            f"## {record['zoo']}, {record['track']} starts → {record['test_zoo']}, "
            f"{record['test_track']} starts",
            f"{splits_of(whole)} {rows:,} test rows of {runs:,} runs in each.",
            page.command(whole, "across", models=whole.models),
            transfer_table(transfer),
        ]
    return _page("Transfer between zoos", _ACROSS, parts)


def _page(title: str, introduction: str, parts: Sequence[str]) -> str | None:
    return "\n\n".join([f"# {title}", introduction, *parts]) + "\n" if parts else None


_SIZES = """τ as a function of the zoo's size; [all models at a glance](index.md). A size of n
has those of the zoo's first n runs that are in the training and validation sets, as if no other
had been built; the test rows are the whole zoo's at every size, so sizes differ in nothing
else. The last size of a model is the whole zoo, or the most that a costly one learned from.
Extrapolated is τ(n) = a − b n^(−c), a at most the noise ceiling and b at least 0, by least
squares over the points of all splits; its interval is 95 % of the curves that fit a bootstrap
over splits, where there are several, and over tested configurations and seeds, 1,000 draws.
Three numbers of a curve from so few sizes, and many times beyond the largest: the interval says
what these curves make of the noise, not whether τ follows such a curve. As a back-test, the curve
of all sizes but the last predicts the last, which is known; three sizes leave none to predict.
Models that are given inputs of the task learn little or nothing from other runs, and have no
curve. Settings of models stay as they are, which larger zoos would allow to be larger; on
small ones the number of trees and the kernel's settings are chosen on a handful of validation
runs."""

_ACROSS = """Trained on the training runs of one zoo, tested on all rows of another, by τ with
the accuracies within that zoo: only the order of its nets counts. A model is there if it can
read the other zoo's nets. No net is in both, but zoos of one grid share hyperparameters: the
second column has only test rows whose hyperparameters (up to a weak L2) no run had that was
learned from, as within one zoo. "Tested at home" is the same model on its own zoo's test runs,
"trained there" the model trained on the other zoo, each from the zoos' own pages. The splits
share their test rows, so a resample draws the same configurations in all of them. [All models at
a glance](index.md)."""
