"""`tnfn inspect`: what a checkpoint is."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from transformer_nfn.cli import adapters
from transformer_nfn.cli.checkpoints import (
    Blocks,
    ConfigFile,
    FamilyFile,
    Options,
    Source,
    open_checkpoint,
)
from transformer_nfn.cli.common import Json, show
from transformer_nfn.cli.early import check_not_read, check_there
from transformer_nfn.cli.pages.common import Html, check_page
from transformer_nfn.cli.tables import print_panel, print_table
from transformer_nfn.cli.terminal import say, say_json
from transformer_nfn.cli.wording import counted, short_number

if TYPE_CHECKING:
    from transformer_nfn.identity import Inspection


def inspect(
    path: Source,
    config: ConfigFile = None,
    options: Options = None,
    family: FamilyFile = None,
    html: Html = None,
    as_json: Json = False,
) -> None:
    """Show what a checkpoint is: sizes, symmetries, health.

    Its family, sizes, symmetry group, and the health of attention heads and neurons.

    Exit code 1 if it has NaN or infinite numbers, or cannot be read.

    Example: tnfn inspect model.safetensors
    """
    check_page(html)
    check_not_read((path, config, family), html)
    check_there(path, config)
    if adapters.are_adapters(path):
        if html is not None:
            raise typer.BadParameter("there is no page of an adapter", param_hint="--html")
        facts = adapters.describe(path)
        show(facts, as_json)
        raise typer.Exit(1 if facts["not_finite"] else 0)
    from transformer_nfn.identity import inspect_checkpoint

    with (
        open_checkpoint(path, config, options, family) as checkpoint,
        Blocks(checkpoint.blocks, "blocks", disable=as_json) as progress,
    ):
        found = inspect_checkpoint(checkpoint, progress)
    bad = sum(block.not_finite for block in found.health) + sum(found.not_finite.values())
    if html is not None:
        from transformer_nfn.cli.pages.inspect import write_inspection

        health = HEALTH, health_rows(found)
        write_inspection(html, path, found, in_words(found), symmetry_rows(found), health)
        say(f"wrote {html}", err=True)
    if as_json:
        say_json({**asdict(found), "dimension": found.dimension})
    else:
        _show(path, found)
    if bad:
        raise typer.Exit(1)


def in_words(found: "Inspection") -> list[tuple[str, str]]:
    """What a checkpoint is: a word each, and what is to be said of it."""
    sizes = ", ".join(f"{name} {number}" for name, number in found.sizes.items())
    settings = (
        f"{name} {short_number(value) if isinstance(value, float) else value}"
        for name, value in found.settings.items()
        if value is not None and name != "tied"
    )
    outputs = ", ".join(found.heads) or "none, it gives hidden states"
    tied = ", tied to the embedding" if found.settings.get("tied") else ""
    lines = [
        ("family", found.family),
        ("parameters", f"{found.parameters:,} in {found.dtype}"),
        ("sizes", f"{counted(found.blocks, 'block')}, {sizes}"),
        ("settings", ", ".join(settings)),
        ("output heads", outputs + tied),
    ]
    if found.unknown:
        more = f" and {len(found.unknown) - 5} more" if len(found.unknown) > 5 else ""
        lines.append(("not known", f"what these tensors do: {', '.join(found.unknown[:5])}{more}"))
    lines.append(("symmetries", f"{found.dimension:,} dimensions in all"))
    return lines


def symmetry_rows(found: "Inspection") -> list[tuple[str, str, str]]:
    """The parts of the symmetry group: name, dimensions, what they are."""
    from transformer_nfn.identity import PARTS

    return [
        (name, f"{dimension:,}" if dimension else "discrete", PARTS[name].what)
        for name, dimension in found.group.items()
    ]


#: The health of a block, in words.
HEALTH = ("block", "rank QK", "condition", "rank VO", "condition", "dead neurons", "NaN")


def health_rows(found: "Inspection") -> list[tuple[str, ...]]:
    """The health of each block, in the order of `HEALTH`."""
    return [
        (
            str(number),
            str(block.qk_rank),
            f"{block.qk_condition:.3g}",
            str(block.vo_rank),
            f"{block.vo_condition:.3g}",
            str(block.dead_neurons),
            str(block.not_finite),
        )
        for number, block in enumerate(found.health)
    ]


def _show(path: str, found: "Inspection") -> None:
    print_panel(path, in_words(found), "cyan")
    say()
    print_table(("symmetry", "dimensions", "what"), symmetry_rows(found), right=("dimensions",))
    say()
    print_table(HEALTH, health_rows(found), right=HEALTH)
    for name, count in found.not_finite.items():
        say(f"{name} has {count} numbers that are NaN or infinite", err=True)
