"""`tnfn kin`: does this checkpoint come from that one?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_nfn.cli.adapters import are_adapters
from transformer_nfn.cli.checkpoints import (
    Blocks,
    ConfigFirst,
    ConfigSecond,
    FamilyFile,
    Options,
    OptionsFirst,
    OptionsSecond,
    Source,
    open_two,
)
from transformer_nfn.cli.common import Json
from transformer_nfn.cli.early import check_not_read, check_picture, check_there
from transformer_nfn.cli.evidence import Bom, Card, check_evidence, write_evidence
from transformer_nfn.cli.pages.common import Html, check_page
from transformer_nfn.cli.tables import print_panel, print_table
from transformer_nfn.cli.terminal import say, say_json

if TYPE_CHECKING:
    from transformer_nfn.checkpoints import Checkpoint
    from transformer_nfn.kinship import BlockKin, Count, Disguise, Kin, NetKin

#: Exit codes of `tnfn kin`; 1 and 2 are errors, of a file and of the command line.
UNRELATED, NOT_COMPARABLE = 3, 4


def kin(
    first: Source,
    second: Source,
    plot: Annotated[
        Path | None, typer.Option(help="A picture: blocks of the first against the second's.")
    ] = None,
    html: Html = None,
    units: Annotated[
        Path | None,
        typer.Option(
            metavar="TABLE.toml",
            help="Which tensors have which units, for files that no family reads.",
        ),
    ] = None,
    disguised: Annotated[
        bool,
        typer.Option("--disguised", help="Look past moved neurons, heads and bases too: a score."),
    ] = False,
    config_first: ConfigFirst = None,
    config_second: ConfigSecond = None,
    options: Options = None,
    family: FamilyFile = None,
    options_first: OptionsFirst = None,
    options_second: OptionsSecond = None,
    bom: Bom = None,
    card: Card = None,
    as_json: Json = False,
) -> None:
    """Does one checkpoint come from another? With a p-value.

    Or do both come from one start?

    Neurons, heads and coordinates of unrelated models are in no common order; those of a fine-tune
    keep their places. Answers: copy, derived, shares a start, shares parts, unrelated as far as can
    be seen, not comparable. p bounds the probability of as many kept places in unrelated models.
    Two runs from one seed share their start. Files that no family reads are compared by rows that
    are the same, without p, or by --units. Exit code 0 for kin, 3 for unrelated, 4 if not
    comparable; a score of --disguised does not change it.

    Example: tnfn kin tuned/ base/ --plot blocks.png
    """
    check_picture(plot)
    check_evidence(bom, card)
    check_page(html)
    check_not_read((first, second, config_first, config_second, family), plot, html)
    check_there(first, second)
    are_adapters(first, second)
    from transformer_nfn.checkpoints import UnsupportedError, open_files
    from transformer_nfn.kinship import (
        Relation,
        in_disguise,
        kin_by_rows,
        kin_by_table,
        plot_blocks,
    )
    from transformer_nfn.kinship import kin as ask

    if units is not None and (bom or card):
        raise typer.BadParameter("needs networks of a known family", param_hint="--bom, --card")
    hidden = None
    if units is not None:
        if disguised:
            raise typer.BadParameter(
                "needs networks of a known family, not --units", param_hint="--disguised"
            )
        if config_first or config_second or options or options_first or options_second or family:
            raise typer.BadParameter(
                "no settings are read with it; leave --family, --config-… and --set… out",
                param_hint="--units",
            )
        with open_files(first) as one, open_files(second) as two:
            found = kin_by_table(one, two, units)
            names = one.path.name, two.path.name
    else:
        configs, settings = (config_first, config_second), (options, options_first, options_second)
        try:
            with open_two((first, second), configs, settings, family) as (ours, theirs):
                encoder = ours.encoder.blocks if ours.encoder is not None else 0
                with Blocks(ours.blocks + encoder, "blocks compared", disable=as_json) as progress:
                    found = ask(ours, theirs, progress)
                hidden = in_disguise(ours, theirs) if disguised else None
                _write_evidence(found, ours, theirs, bom, card)
                names = ours.path.name, theirs.path.name
        except UnsupportedError as error:
            if family is not None or disguised or bom or card:
                raise
            say(str(error), err=True)
            with open_files(first) as one, open_files(second) as two:
                found = kin_by_rows(one, two)
    if plot is not None and any(net.blocks for net in found.networks):
        plot_blocks(found, plot, *names)
    elif plot is not None:
        say("no picture: no blocks were compared", err=True)
    if html is not None:
        from transformer_nfn.cli.pages.kin import write_kin

        write_kin(html, (first, second), found, in_words(found), table_of)
        say(f"wrote {html}", err=True)
    if as_json:
        said = hidden and {"score": round(hidden.score, 4), "blocks": hidden.blocks}
        say_json(facts(found) | ({"disguised": said} if disguised else {}))
    else:
        _show(found)
        if hidden is not None:
            _show_hidden(hidden)
        elif found.relation is Relation.UNRELATED and units is None:
            say("")
            say("moved neurons, heads or bases would hide kinship: --disguised looks past them")
    if found.relation is Relation.UNRELATED:
        raise typer.Exit(UNRELATED)
    if found.relation is Relation.NOT_COMPARABLE:
        raise typer.Exit(NOT_COMPARABLE)


def _write_evidence(
    found: "Kin",
    ours: "Checkpoint",
    theirs: "Checkpoint",
    bom: Path | None,
    card: Path | None,
) -> None:
    """The second may be where the first comes from; the other way round if that is what we see."""
    from transformer_nfn.evidence import Bond, name_of
    from transformer_nfn.kinship import Relation

    turned = found.direction is not None and found.direction.source == 0
    models = (theirs, ours) if turned else (ours, theirs)
    one, other = (name_of(model.path) for model in models)
    p = f"{found.relation.value}, p at most {_power(found.log10_p)}"
    if found.relation in (Relation.UNRELATED, Relation.NOT_COMPARABLE):
        bond = Bond.NONE
        says = f"not seen: any kinship of {one} with {other} ({found.relation.value})"
    elif found.relation in (Relation.START, Relation.PARTS):
        bond, says = Bond.VARIANT, f"consistent with: {one} and {other} are kin ({p})"
    else:
        bond, says = Bond.ANCESTOR, f"consistent with: {one} comes from {other} ({p})"
        if found.direction is None:
            says += "; which came first is as stated, not measured"
    figures = {
        "answer": found.relation.value,
        "reason": found.reason,
        "log10_p": _log10(found.log10_p) if found.networks else None,
        "came-first": found.direction and f"{other}: {found.direction.because}",
    }
    write_evidence(models, bond, says, figures, bom, card)


def facts(found: "Kin") -> dict[str, Any]:
    """The answer as plain data."""
    return {
        "answer": found.relation.value,
        "reason": found.reason,
        "log10_p": _log10(found.log10_p) if found.networks else None,
        "direction": found.direction
        and {
            "from": ("first", "second")[found.direction.source],
            "because": found.direction.because,
        },
        "blocks_that_count_once": [[list(name) for name in group] for group in found.twins],
        "networks": [
            {
                "name": net.name,
                "stream": net.stream
                and {**_count(net.stream.count), "not_counted_in_p": net.stream.doubt},
                "stream_not_compared": net.reason,
                "blocks": [_block(block) for block in net.blocks],
            }
            for net in found.networks
        ],
    }


def _block(block: "BlockKin") -> dict[str, Any]:
    return {
        "first": block.number,
        "second": block.other,
        "log10_p": _log10(block.log10_p),
        "cosine": round(block.cosine, 4),
        "difference": float(f"{block.difference:.4g}") if block.close else None,
        "counts": [_count(one) for one in block.counts],
    }


def _count(one: "Count") -> dict[str, Any]:
    return {
        "units": one.units,
        "of": one.what,
        "tensor": one.tensor,
        "kept": one.kept,
        "log10_p": _log10(one.log10_p),
    }


def _log10(value: float) -> float:
    return round(value, 2) + 0.0


#: The colour of an answer's frame.
_COLOURS = {"unrelated as far as can be seen": "yellow", "not comparable": "yellow"}


def in_words(found: "Kin") -> list[tuple[str, str]]:
    """The answer as a person wants to read it: a word each, and a sentence."""
    lines = [("why", found.reason)]
    if found.networks:
        lines.append(("p", f"at most {_power(found.log10_p)} for unrelated models"))
    if found.direction is not None:
        lines.append(("direction", str(found.direction)))
    return lines


def table_of(net: "NetKin") -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The headings and rows of one network: its stream and its blocks."""
    rows: list[tuple[str, ...]] = []
    if (stream := net.stream) is not None:
        p = _power(stream.count.log10_p) if stream.doubt is None else "not counted"
        close = "", ""
        if stream.close is not None:
            close = f"{stream.close.cosine:.3f}", f"{stream.close.difference:.2%}"
        rows.append(("stream", "", _kept(stream.count), p, *close))
    rows += [
        (
            str(block.number),
            str(block.other),
            _kept(block.telling),
            _power(block.log10_p),
            f"{block.cosine:.3f}",
            f"{block.difference:.2%}" if block.close else "",
        )
        for block in net.blocks
    ]
    return ("block", "with", "units", "p", "cosine", "differ by"), rows


def _show(found: "Kin") -> None:
    answer = found.relation.value
    print_panel(answer, in_words(found), _COLOURS.get(answer, "green"))
    for net in found.networks:
        say("")
        say(net.name)
        columns, rows = table_of(net)
        print_table(columns, rows, indent=2, right=("cosine", "differ by"))
        if net.reason:
            say(f"  the stream is not compared: {net.reason}")
        if net.stream is not None and net.stream.doubt:
            say(f"  the stream is not counted in p: {net.stream.doubt}")


def _show_hidden(hidden: "Disguise") -> None:
    say("")
    if not hidden.blocks:
        say(f"in disguise: not comparable, {hidden.reason}")
        return
    say(f"in disguise: score {hidden.score:.3f}; 0 is chance, 1 a copy (no p-value)")
    for name, blocks in hidden.blocks.items():
        each = ", ".join(f"{one} with {two} {score:.2f}" for one, two, score in blocks)
        say(f"  blocks of the {name}, of the shallower file first: {each}")


def _kept(one: "Count") -> str:
    what = "order" if one.ordered else "place"
    return f"{one.kept} of {one.units} {one.what} keep their {what}"


def _power(log10_p: float) -> str:
    """A probability; below 10^-100 nobody means it."""
    if log10_p < -100:
        return "10^-100"
    return f"{10**log10_p:.2g}" if log10_p > -3 else f"10^{log10_p:.0f}"
