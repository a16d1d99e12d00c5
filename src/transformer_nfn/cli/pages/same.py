"""The page of `tnfn same`: the answer, attention heads, outputs on the witness."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_nfn.cli.pages.common import write_page
from transformer_nfn.cli.verdicts import in_words, name_of_choice, tried_on

if TYPE_CHECKING:
    from torch import Tensor

    from transformer_nfn.identity import Verdict
    from transformer_nfn.reports import Page

#: Most blocks that are drawn; of a deeper network the first ones.
_BLOCKS = 48
#: Most tokens of an input that are shown.
_TOKENS = 256


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
        _witness(page, witness, names, found["answer"])
    page.heading("All figures")
    plain = _flat(found)
    rows = ((name.replace("_", " "), str(value)) for name, value in plain.items())
    page.table(("figure", "value"), rows)
    write_page(page, path)


def _flat(found: dict[str, Any], before: str = "") -> dict[str, Any]:
    """All figures that are there, those of tables under the names of both."""
    flat: dict[str, Any] = {}
    for name, value in found.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{before}{name}: ")
        elif value is not None:
            flat[f"{before}{name}"] = value
    return flat


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


def _witness(page: "Page", witness: dict[str, Any], names: tuple[str, str], answer: str) -> None:
    # What was tried need not show a difference beyond rounding.
    differ = "An input on which they differ"
    page.heading(differ if answer == "different" else "The input on which they are furthest apart")
    if (said := witness.get("said")) is not None:
        place = "" if said["position"] is None else f" at token {said['position'] + 1}"
        page.text(f"What {witness['output']} of each prefers{place}, and how sure it is:")
        page.bars(
            (name, choice["probability"], f"{name_of_choice(choice)}: {choice['probability']:.3g}")
            for name, choice in zip(names, (said["first"], said["second"]), strict=True)
        )
    else:
        values = [witness[key] for key in ("first", "second")]
        largest = max(map(abs, values)) or 1.0
        page.text(f"The entry of {witness['output']} that differs most:")
        pairs = zip(names, values, strict=True)
        page.bars((name, abs(value) / largest, f"{value:.4g}") for name, value in pairs)
    page.text(f"Input: {tried_on(witness, most=_TOKENS)}")
