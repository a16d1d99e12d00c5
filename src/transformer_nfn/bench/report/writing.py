"""Write what a benchmark found: Markdown pages, pictures and one JSON file."""

from collections.abc import Sequence
from pathlib import Path

from transformer_nfn.bench.models.registry import MODELS, main_models, shown_beside
from transformer_nfn.bench.protocol.computing import Finished
from transformer_nfn.bench.report.choosing import shown_cells
from transformer_nfn.bench.report.learning import learnings
from transformer_nfn.bench.report.order import shown_place
from transformer_nfn.bench.report.outside import outside_kinds
from transformer_nfn.bench.report.pages.asked import asked_page, unseen_kinds
from transformer_nfn.bench.report.pages.front import front_page
from transformer_nfn.bench.report.pages.larger import sizes_page, transfer_page
from transformer_nfn.bench.report.pages.notes import filled, read_notes
from transformer_nfn.bench.report.pages.page import Page, file_name
from transformer_nfn.bench.report.pages.paper import paper_page
from transformer_nfn.bench.report.pages.zoo import zoo_page
from transformer_nfn.bench.report.predictions import write_predictions
from transformer_nfn.bench.report.results import results_json
from transformer_nfn.bench.report.scores import comparisons

PAGE = "index.md"
PAPER = "paper.md"
SIZES = "learning-curves.md"
TRANSFER = "transfer.md"
ASKED = "questions.md"
RESULTS = "results.json"


def write_report(
    out: str | Path | Sequence[str | Path], to: str | Path, notes: str | Path | None = None
) -> list[Path]:
    """Write the report of all finished cells of a benchmark, in place of an older one.

    One page with all models at a glance, and pages with the details: one for each zoo and track,
    one for the paper's other tables, one for learning curves, one for transfer between zoos and one
    for other questions and for extrapolation. All predictions are written too, in a file for each
    zoo, from which a report can be made again, alone or beside other zoos.

    Args:
        out: The folder of the benchmark, or of a report, or several: see `shown_cells`.
        to: Where to write; made if need be.
        notes: A Markdown file for what a person has to say, put on the first page; its placeholders
            become figures, see `filled`.

    Raises:
        BenchError: If no cell is finished, or the notes are no text or ask for what is not there.
    """
    outs = [out] if isinstance(out, str | Path) else list(out)
    cells, left_out = shown_cells(outs)
    with shown_beside(outside_kinds(cells)):
        return _write(cells, left_out, Path(outs[0]).name, Path(to), notes)


def _write(
    cells: list[Finished], left_out: str, out: str, home: Path, notes: str | Path | None
) -> list[Path]:
    whole = [cell for cell in cells if cell.record["runs"] is None]
    found = comparisons(whole or cells, main_models(), uneven=True)
    main = sorted(found, key=shown_place)
    grown, unseen = learnings(cells, list(MODELS)), unseen_kinds(cells)
    said = "" if notes is None else filled(read_notes(Path(notes)), main, grown, unseen)
    home.mkdir(parents=True, exist_ok=True)
    packed = write_predictions(cells, home)
    page = Page(home, out)
    pages = {
        PAPER: ("the paper's other tables", paper_page(page, cells, main)),
        SIZES: ("learning curves", sizes_page(page, grown)),
        TRANSFER: ("transfer between zoos", transfer_page(page, cells)),
        ASKED: (
            "other questions, and runs of a kind not learned from",
            asked_page(page, cells, unseen),
        ),
    }
    details = [f"[{title}]({name})" for name, (title, text) in pages.items() if text is not None]
    texts = {
        PAGE: front_page(page, main, said, left_out, details),
        **{f"{file_name(one.zoo, one.track)}.md": zoo_page(page, one) for one in main},
        **{name: text for name, (_, text) in pages.items() if text is not None},
        RESULTS: results_json(cells),
    }
    for name, text in texts.items():
        (home / name).write_text(text, encoding="utf-8")
    return [*(home / name for name in texts), *page.drawn, *packed]
