"""Write what a benchmark found: Markdown, pictures and one JSON file."""

from pathlib import Path

from transformer_nfn.bench.errors import BenchError
from transformer_nfn.bench.models.registry import main_models, shown_beside
from transformer_nfn.bench.protocol.computing import STRESS_CONDITION, Finished
from transformer_nfn.bench.protocol.experiments import BOUNDS, CHANNELS, COMPONENTS, RANKS
from transformer_nfn.bench.report import pictures, tables
from transformer_nfn.bench.report.choosing import shown_cells
from transformer_nfn.bench.report.outside import outside_kinds
from transformer_nfn.bench.report.page import Page, file_name, splits_of
from transformer_nfn.bench.report.results import results_json
from transformer_nfn.bench.report.scores import LEAST_RUNS, Comparison, comparisons
from transformer_nfn.bench.report.sections import across_section, sizes_section

PAGE = "index.md"
RESULTS = "results.json"


def write_report(out: str | Path, to: str | Path, notes: str | Path | None = None) -> list[Path]:
    """Write the report of all finished cells of a benchmark, in place of an older one.

    Args:
        out: The folder of the benchmark.
        to: Where to write; made if need be.
        notes: A Markdown file that is put under the summary, for what a person has to say.

    Raises:
        BenchError: If no cell is finished, or the notes are no text.
    """
    cells, left_out = shown_cells(out)
    home = Path(to)
    home.mkdir(parents=True, exist_ok=True)
    with shown_beside(outside_kinds(cells)):
        report = _Report(cells, home, Path(out).name)
        text = report.page("" if notes is None else _read_notes(Path(notes)), left_out)
        (home / PAGE).write_text(text, encoding="utf-8")
        (home / RESULTS).write_text(results_json(cells), encoding="utf-8")
    return [home / PAGE, home / RESULTS, *report.drawn]


def _read_notes(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BenchError(f"{path} is no Markdown file that can be read: {error}") from None


class _Report:
    """The page under construction: a method for each section of what the paper compares."""

    def __init__(self, cells: list[Finished], home: Path, out: str) -> None:
        self._cells, self._page = cells, Page(home, out)
        whole = [cell for cell in cells if cell.record["runs"] is None]
        found = comparisons(whole, main_models()) or comparisons(cells, main_models())
        # Where cells failed, models may have no split in common.
        self._main = sorted((one for one in found if one.splits), key=_place)

    @property
    def drawn(self) -> list[Path]:
        """The pictures."""
        return self._page.drawn

    def page(self, notes: str, left_out: str) -> str:
        """The whole page."""
        parts = [_INTRODUCTION]
        parts += [left_out] if left_out else []
        if self._main:
            parts += ["## All models at a glance", _GLANCE, tables.overview_table(self._main)]
            parts += ["## Who wins where", *(f"- {tables.winners(c)}" for c in self._main)]
            parts += [
                self._page.picture("tracks.png", "τ of all models", pictures.tracks(self._main))
            ]
        parts += [notes] if notes else []
        parts += self._both_tracks()
        for comparison in self._main:
            parts += self._zoo(comparison)
        parts += self._stress()
        parts += self._variants("Components", COMPONENTS, "components")
        parts += self._variants("Channels", CHANNELS, "channels")
        parts += self._variants("Ranks", RANKS, "ranks")
        parts += self._augmentation()
        parts += self._retrained()
        parts += sizes_section(self._page, self._cells)
        parts += across_section(self._page, self._cells)
        return "\n\n".join(parts) + "\n"

    def _both_tracks(self) -> list[str]:
        parts = []
        by_zoo: dict[str, dict[str, Comparison]] = {}
        for comparison in self._main:
            by_zoo.setdefault(comparison.zoo, {})[comparison.track] = comparison
        for zoo, by_track in by_zoo.items():
            if set(by_track) == {"independent", "shared"}:
                one, other = by_track["independent"], by_track["shared"]
                both = tables.tracks_table(one, other, one.record["task"])
                parts += [f"## {zoo}: both tracks side by side", _TRACKS, both]
        return parts

    def _zoo(self, comparison: Comparison) -> list[str]:
        file = file_name(comparison.zoo, comparison.track)
        rows = sum(
            comparison.cells[comparison.models[0]][s].record["test_rows"] for s in comparison.splits
        )
        return [
            f"## {comparison.zoo}, {comparison.track} starts",
            f"{len(comparison.splits)} splits, {rows:,} test rows of "
            f"{_count_runs(comparison):,} runs.",
            self._page.command(comparison, "main"),
            "### Kendall's τ",
            tables.main_table(comparison, comparison.record["task"]),
            "### Who is ahead of whom",
            tables.differences_table(comparison),
            "### Cost",
            tables.cost_table(comparison),
            "### Pictures",
            self._page.picture(
                f"thresholds-{file}.png",
                "τ against the accuracy threshold",
                pictures.by_threshold(comparison),
            ),
            self._page.picture(
                f"scatter-{file}.png",
                "predicted against true accuracy",
                pictures.scatter(comparison),
            ),
        ]

    def _stress(self) -> list[str]:
        moved = [one for one in self._main if any(map(one.has_moved, one.models))]
        if not moved:
            return []
        picture = self._page.picture(
            "robustness.png",
            "τ before and after a random group element",
            pictures.robustness(moved),
        )
        parts = ["## Under the group", _STRESS, picture]
        if any(not one.has_moved(model) for one in moved for model in one.models):
            parts.append(_NOT_MOVED)
        for comparison in moved:
            parts += [
                f"### {comparison.zoo}, {comparison.track} starts, under the group",
                tables.stress_table(comparison),
            ]
        return parts

    def _variants(self, title: str, models: tuple[str, ...], experiment: str) -> list[str]:
        parts = []
        for comparison in comparisons(self._cells, models):
            if len(comparison.models) > 1 and comparison.splits:
                parts += [
                    f"### {comparison.zoo}, {comparison.track} starts, {experiment}",
                    splits_of(comparison),
                    self._page.command(comparison, experiment),
                    tables.variants_table(comparison, experiment, comparison.record["task"]),
                ]
        return [f"## {title}", *parts] if parts else []

    def _augmentation(self) -> list[str]:
        found: dict[tuple[str, str], dict[str, Comparison]] = {}
        models = [*main_models(), "nfn-balanced"]
        for bound in BOUNDS:
            for one in comparisons(self._cells, models, augment=bound):
                if one.splits:
                    found.setdefault((one.zoo, one.track), {})[f"±{bound:g}"] = one
        parts = []
        for (zoo, track), by_bound in found.items():
            last = next(reversed(by_bound.values()))
            original = [
                one
                for one in comparisons(self._cells, last.models, splits=last.splits)
                if (one.zoo, one.track) == (zoo, track)
            ]
            whole = {"original": original[0], **by_bound} if original else by_bound
            parts += [
                f"### {zoo}, {track} starts, augmented",
                splits_of(last),
                self._page.command(last, "main", "augmentation"),
                tables.augmentation_table(whole, last.record["task"]),
                self._page.picture(
                    f"augmentation-{file_name(zoo, track)}.png",
                    "τ under augmentation",
                    pictures.augmentation(whole),
                ),
            ]
        return ["## Augmentation by the group", _AUGMENTATION, *parts] if parts else []

    def _retrained(self) -> list[str]:
        bounds = sorted(
            {c.record["threshold"] for c in self._cells if c.record["threshold"] is not None}
        )
        models = main_models()
        again = {bound: comparisons(self._cells, models, threshold=bound) for bound in bounds}
        parts = []
        for original in comparisons(self._cells, models):
            by_threshold = {
                bound: one
                for bound, ones in again.items()
                for one in ones
                if (one.zoo, one.track) == (original.zoo, original.track)
                and one.splits
                and set(one.splits) <= set(original.splits)
            }
            if by_threshold:
                last = next(iter(by_threshold.values()))
                parts += [
                    f"### {original.zoo}, {original.track} starts, trained again",
                    splits_of(last),
                    self._page.command(last, "thresholds"),
                    tables.retrained_table(original, by_threshold),
                ]
        return ["## Training again above each threshold", _RETRAINED, *parts] if parts else []


def _place(comparison: Comparison) -> tuple[int, str, str]:
    order = ("mnist-small", "agnews-small", "digits-mini")
    place = order.index(comparison.zoo) if comparison.zoo in order else len(order)
    return place, comparison.zoo, comparison.track


def _count_runs(comparison: Comparison) -> int:
    cells = comparison.cells[comparison.models[0]]
    return len({run for s in comparison.splits for run in cells[s].table.column("run").to_pylist()})


_GLANCE = """τ is 1 for a perfect order, 0 by chance. "Independent" is a seed for each run, "shared"
one start for all runs, as in the paper."""

_INTRODUCTION = f"""# Predicting accuracy from weights

Each model sees the weights of small trained transformers and predicts their test accuracy; the
figure is Kendall's τ between prediction and truth on runs it has not seen. Each model is trained
once for each of five fixed splits, which keep a run's checkpoints, and runs that differ only in an
L2 up to 1e-6, on one side; a threshold leaves test rows of lower accuracy out. Every run is tested
in exactly one split. Figures are means over splits; in brackets are 95 % intervals by a bootstrap
over runs, 1,000 draws. "Ahead" means that the interval of the paired difference excludes 0, and is
not said of fewer than {LEAST_RUNS} test runs, where such intervals are too narrow; each is of one
pair, whatever the number of models. Bold is the highest mean, italics the second. The noise ceiling
is τ of a perfect predictor: a net's accuracy is known from a finite test set. Fits use one thread;
seconds are CPU seconds; memory is what a fit or a prediction adds to the process. The paper's
figures stand beside ours where the same cell exists; its zoos have 16,000 runs, all from one seed,
and its splits are random over checkpoints.

`results.json` beside this page has a record for each cell. This page is written by
`tnfn bench report`."""

_TRACKS = """In the shared track all runs start from one seed, as in the paper's zoo: the nets are
then points in one common system of coordinates, and a model may read single weights. In the
independent track every run has its own seed, as checkpoints in the world have. Hyperparameters
alone, without any weight, show how much of τ is known before a weight is read."""

_STRESS = f"""τ on the same test rows after a random element of the group, another for each net and
block: heads and neurons permuted, M and N of condition number {STRESS_CONDITION:,.0f}, weights
rounded to float32 again. The functions of the nets are the same; no model was trained again."""

_NOT_MOVED = """Predictions from outside have no figure after that: their models cannot be asked
again."""

_AUGMENTATION = """As in the paper: training, validation and test set hold every net twice, as it is
and moved by the group, with entries of M and N uniform in [-1, 1], [-10, 10] or [-100, 100]. Such
matrices are badly conditioned; "balanced" reads heads in their balanced form."""

_RETRAINED = """The paper trains every model again for each threshold. τ of the model trained once →
τ of the model that was trained on rows above the threshold only, same test rows."""
