"""`tnfn same`: are two checkpoints the same function?"""

from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from transformer_nfn.cli import adapters
from transformer_nfn.cli.checkpoints import (
    Blocks,
    ConfigFirst,
    ConfigSecond,
    FamilyFile,
    Only,
    Options,
    OptionsFirst,
    OptionsSecond,
    Seed,
    Source,
    open_two,
)
from transformer_nfn.cli.common import Json
from transformer_nfn.cli.early import check_not_read, check_picture, check_there, check_writable
from transformer_nfn.cli.evidence import Bom, Card, check_evidence, write_evidence
from transformer_nfn.cli.pages.common import Html, check_page
from transformer_nfn.cli.tables import print_panel
from transformer_nfn.cli.terminal import say, say_json
from transformer_nfn.cli.verdicts import add_saying, facts, in_words

if TYPE_CHECKING:
    from transformer_nfn.checkpoints import Checkpoint
    from transformer_nfn.identity import Verdict

#: Exit codes of `tnfn same`; 1 and 2 are errors, of a file and of the command line.
DIFFERENT, UNDECIDED, NOTHING_MOVED = 3, 4, 5


class Expected(StrEnum):
    """What should have happened to the second."""

    MOVED = "moved"


def same(
    first: Source,
    second: Source,
    certificate: Annotated[
        Path | None, typer.Option(help="Where to write the change of coordinates, if there is one.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="A picture: attention heads of the first against those of the second."),
    ] = None,
    html: Html = None,
    config_first: ConfigFirst = None,
    config_second: ConfigSecond = None,
    options: Options = None,
    family: FamilyFile = None,
    options_first: OptionsFirst = None,
    options_second: OptionsSecond = None,
    seed: Seed = None,
    only: Only = None,
    expect: Annotated[
        Expected | None,
        typer.Option(
            help="Exit code 5 if nothing moved: a rotation that never ran also leaves the function "
            "the same."
        ),
    ] = None,
    look_for_cause: Annotated[
        bool,
        typer.Option(
            "--cause/--no-cause",
            help="If they differ, look for the usual mistakes of a conversion; takes minutes for a "
            "model of several hundred million weights.",
        ),
    ] = True,
    bom: Bom = None,
    card: Card = None,
    as_json: Json = False,
) -> None:
    """Are two checkpoints the same function?

    If they are, a change of coordinates carries one to the other; `--certificate` writes it.

    Answers: identical bytes, same tensors, equivalent (with a certificate), equivalent by products,
    different (with an input that shows it, and the usual mistake that explains it, if one does),
    not decided. Exit code 0 for the same function, 3 for a different one, 4 if not decided, 5 if
    nothing moved that should, 1 if a file cannot be read. Two LoRA adapters, as PEFT stores them,
    are compared by their products.

    Example: tnfn same a.safetensors b/ --certificate g.safetensors
    """
    check_writable(certificate, (".safetensors",))
    check_picture(plot)
    check_evidence(bom, card)
    check_page(html)
    check_not_read((first, second, config_first, config_second, family), certificate, plot, html)
    check_there(first, second)
    from transformer_nfn.checkpoints import CheckpointError
    from transformer_nfn.evidence import Bond, name_of
    from transformer_nfn.identity import compare_bodies, find_cause, moved_tensors
    from transformer_nfn.identity import same as decide

    if only is not None and (certificate or bom or card):
        raise CheckpointError("a certificate or bill is of whole models, not of --only a part")
    if adapters.are_adapters(first, second):
        if certificate is not None or plot is not None or html is not None:
            raise CheckpointError("of adapters there is no certificate, picture or page")
        if expect is not None or only is not None:
            raise CheckpointError("of adapters there are no parts; leave --expect and --only out")
        if bom is not None or card is not None:
            raise CheckpointError("--bom and --card are of whole models, not of adapters")
        verdict = adapters.compare(first, second, seed, quiet=as_json)
        _end(verdict, facts(verdict), as_json)
        return
    configs, settings = (config_first, config_second), (options, options_first, options_second)
    with open_two((first, second), configs, settings, family, only) as (ours, theirs):
        with Blocks(ours.blocks, "blocks compared", disable=as_json) as progress:
            verdict = compare_bodies(ours, theirs, decide(ours, theirs, progress, seed=seed))
        cause = moved = None
        if not verdict.answer.same_function and look_for_cause:
            if not as_json:
                say(
                    f"{verdict.answer.value}; looking for the cause (--no-cause does not)", err=True
                )
            cause = find_cause(ours, theirs)
        elif verdict.answer.same_function and expect is not None:
            moved = len(moved_tensors(ours, theirs))
        found = facts(verdict)
        add_saying(found, verdict, ours, theirs)
        written = certificate and _certify(verdict, ours, theirs, certificate)
        same_function = verdict.answer.same_function
        write_evidence(
            (theirs, ours),
            Bond.ANCESTOR if same_function else Bond.NONE,
            f"{'consistent with' if same_function else 'not seen'}: {name_of(theirs.path)} "
            f"computes what {name_of(ours.path)} does ({verdict.answer.value}); which came first "
            f"is as stated, not measured",
            found,
            bom,
            card,
        )
    if plot is not None and verdict.distances:
        from transformer_nfn.identity import plot_heads

        plot_heads(verdict.distances, plot, ours.path.name, theirs.path.name)
    elif plot is not None:
        say(f"no picture: the answer is {verdict.answer.value!r}, no heads were compared", err=True)
    found["cause"] = cause and asdict(cause)
    if expect is not None:
        found["moved_tensors"] = moved
    if certificate is not None:
        found["certificate"] = str(written) if written else None
    if plot is not None:
        found["plot"] = str(plot) if verdict.distances else None
    if html is not None:
        from transformer_nfn.cli.pages.same import write_same

        write_same(html, (first, second), title_of(verdict), verdict, found)
        found["html"] = str(html)
    _end(verdict, found, as_json)


#: What an answer means, and the colour of its frame.
_MEANS = {True: ("the same function", "green"), False: ("not the same function", "red")}


def _is_decided(verdict: "Verdict") -> bool:
    return verdict.answer.same_function or verdict.answer.value == "different"


def title_of(verdict: "Verdict") -> str:
    """The answer in a few words, and what it means."""
    answer = verdict.answer.value
    if not _is_decided(verdict):
        return answer
    return f"{answer}: {_MEANS[verdict.answer.same_function][0]}"


def _end(verdict: "Verdict", found: dict[str, Any], as_json: bool) -> None:
    """Show a verdict, and end with its exit code."""
    decided = _is_decided(verdict)
    if as_json:
        say_json(found)
    else:
        colour = _MEANS[verdict.answer.same_function][1] if decided else "yellow"
        print_panel(title_of(verdict), in_words(found), colour)
    if found.get("moved_tensors") == 0:
        say("nothing moved: what should have changed the weights did not run", err=True)
        raise typer.Exit(NOTHING_MOVED)
    if not verdict.answer.same_function:
        raise typer.Exit(DIFFERENT if decided else UNDECIDED)


def _certify(
    verdict: "Verdict", ours: "Checkpoint", theirs: "Checkpoint", path: Path
) -> Path | None:
    """Write the certificate of a verdict: of equal tensors the identity; else say why not."""
    from transformer_nfn.identity import Answer, ElementError, NetElement, save_certificate

    element = verdict.element
    if verdict.answer in (Answer.SAME_BYTES, Answer.SAME_TENSORS):
        element = NetElement.identity(ours.spec, ours.blocks)
    if element is None:
        say(f"no certificate: the answer is {verdict.answer.value!r}", err=True)
        return None
    try:
        save_certificate(element, ours, theirs, path, verdict=facts(verdict))
    except ElementError as error:
        say(f"no certificate: {error}", err=True)
        return None
    return path
