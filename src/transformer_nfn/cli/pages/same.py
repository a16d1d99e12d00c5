"""The page of `tnfn same`: the answer, attention heads, outputs on the witness."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_nfn.cli.pages.common import write_page
from transformer_nfn.cli.verdicts import in_words

if TYPE_CHECKING:
    from torch import Tensor

    from transformer_nfn.identity import Verdict
    from transformer_nfn.reports import Page

#: Most blocks that are drawn; of a deeper network the first ones.
_BLOCKS = 48


def write_same(
    path: Path, names: tuple[str, str], title: str, verdict: "Verdict", found: dict[str, Any]
) -> None:
    """Write the page of a verdict.

    Args:
        path: A file.
        names: Of the two checkpoints, as they were given.
        title: The answer in a few words.
        verdict: The verdict.
        found: Its facts.
    """
    from transformer_nfn.reports import Page

    page = Page(f"{names[0]} and {names[1]}", "Are these two checkpoints the same function?")
    same = verdict.answer.same_function
    kind = "good" if same else "bad" if verdict.answer.value == "different" else "open"
    page.answer(title, in_words(found), kind)
    if verdict.distances:
        _heads(page, verdict.distances, names)
    if (witness := found["witness"]) is not None:
        _witness(page, witness, names)
    page.heading("All figures")
    plain = {name: value for name, value in found.items() if not isinstance(value, dict | None)}
    for name in ("outputs", "witness"):
        for key, value in (found[name] or {}).items():
            plain[f"{name}: {key}"] = value
    rows = ((name.replace("_", " "), str(value)) for name, value in plain.items())
    page.table(("figure", "value"), rows)
    write_page(page, path)


def _heads(page: "Page", distances: "Sequence[Tensor]", names: tuple[str, str]) -> None:
    from transformer_nfn.reports import HeatMap, legend

    page.heading("Attention heads")
    page.text(
        f"Rows are the attention heads of {names[0]}, columns those of {names[1]}. A dark cell is "
        "a pair that computes the same; where the files are one network in other coordinates, each "
        "row and each column has one."
    )
    maps = [
        HeatMap(block.clamp_min(0).sqrt().numpy().astype(float), 0.0, 2.0, f"block {number}")
        for number, block in enumerate(distances[:_BLOCKS])
    ]
    page.drawings(one.html() for one in maps)
    page.drawing(legend("the same", "a distance of 2"))
    if len(distances) > _BLOCKS:
        page.text(f"The first {_BLOCKS} of {len(distances)} blocks are drawn.")


def _witness(page: "Page", witness: dict[str, Any], names: tuple[str, str]) -> None:
    page.heading("An input on which they differ")
    if (said := witness.get("said")) is not None:
        rows = []
        for name, key in zip(names, ("first", "second"), strict=True):
            choice = said[key]
            word = f"output {choice['output']}" if choice["word"] is None else repr(choice["word"])
            rows.append((name, choice["probability"], f"{word}: {choice['probability']:.3f}"))
        page.text("What each says, and how sure it is:")
        page.bars(rows)
    else:
        one, two = (witness[key] or 0.0 for key in ("first", "second"))
        largest = max(abs(one), abs(two)) or 1.0
        page.text(f"The entry of {witness['output']} that differs most:")
        shares = zip(names, (one, two), strict=True)
        page.bars((name, abs(value) / largest, f"{value:.4g}") for name, value in shares)
    ids = witness["tokens"]
    if ids:
        row = ids[0] if isinstance(ids[0], list) else ids
        words = witness.get("words") or [None] * len(row)
        shown = (repr(w) if w is not None else str(n) for n, w in zip(row, words, strict=False))
        page.text("Tokens: " + ", ".join(shown))
