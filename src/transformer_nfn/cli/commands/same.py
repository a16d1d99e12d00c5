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
    check_picture,
    check_writable,
    open_two,
)
from transformer_nfn.cli.common import Json, show
from transformer_nfn.cli.evidence import Bom, Card, check_evidence, write_evidence
from transformer_nfn.cli.terminal import say

if TYPE_CHECKING:
    from torch import Tensor

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
        Path | None, typer.Option(help="A picture: heads of the first against heads of the second.")
    ] = None,
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
        typer.Option(help="Fail if nothing moved: a rotation that did not run is the same too."),
    ] = None,
    look_for_cause: Annotated[
        bool,
        typer.Option(
            "--cause/--no-cause",
            help="Whether to look for the usual mistake where they differ: minutes for a model of "
            "some hundred million weights.",
        ),
    ] = True,
    bom: Bom = None,
    card: Card = None,
    as_json: Json = False,
) -> None:
    """Decide whether two checkpoints are the same function, and by which change of coordinates.

    Answers: identical bytes, same tensors, equivalent (with a certificate), equivalent by products,
    different (with an input that shows it, and the usual mistake that explains it, if one does),
    not decided. Exit code 0 for the same function, 3 for a different one, 4 if not decided, 5 if
    nothing moved that should, 1 if a file cannot be read. Two LoRA adapters, as PEFT stores them,
    are compared by their products.

    Example: tnfn same a.safetensors b/ --certificate g.safetensors
    """
    from transformer_nfn.checkpoints import CheckpointError
    from transformer_nfn.evidence import Bond, name_of
    from transformer_nfn.identity import compare_bodies, find_cause, moved_tensors
    from transformer_nfn.identity import same as decide

    check_writable(certificate, (".safetensors",))
    check_picture(plot)
    check_evidence(bom, card)
    if only is not None and (certificate or bom or card):
        raise CheckpointError("a certificate or bill is of whole models, not of --only a part")
    if adapters.are_adapters(first, second):
        if certificate is not None or plot is not None:
            raise CheckpointError("of adapters there is neither a certificate nor a picture")
        if expect is not None or only is not None:
            raise CheckpointError("of adapters there are no parts; leave --expect and --only out")
        if bom is not None or card is not None:
            raise CheckpointError("--bom and --card are of whole models, not of adapters")
        _end(adapters.compare(first, second, seed, quiet=as_json), {}, as_json)
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
        written = certificate and _certify(verdict, ours, theirs, certificate)
        same_function = verdict.answer.same_function
        write_evidence(
            (theirs, ours),
            Bond.ANCESTOR if same_function else Bond.NONE,
            f"{'consistent with' if same_function else 'not seen'}: {name_of(theirs.path)} "
            f"computes what {name_of(ours.path)} does ({verdict.answer.value}); which came first "
            f"is as stated, not measured",
            facts(verdict),
            bom,
            card,
        )
    if plot is not None and verdict.distances:
        from transformer_nfn.identity import plot_heads

        plot_heads(verdict.distances, plot, ours.path.name, theirs.path.name)
    more: dict[str, Any] = {"cause": cause and asdict(cause)}
    if expect is not None:
        more["moved_tensors"] = moved
    if certificate is not None:
        more["certificate"] = str(written) if written else None
    if plot is not None:
        more["plot"] = str(plot) if verdict.distances else None
    _end(verdict, more, as_json)


def _end(verdict: "Verdict", more: dict[str, Any], as_json: bool) -> None:
    """Show a verdict, and end with its exit code."""
    figures = facts(verdict) | more
    show({name: value for name, value in figures.items() if as_json or value is not None}, as_json)
    if more.get("moved_tensors") == 0:
        say("nothing moved: what should have changed the weights did not run", err=True)
        raise typer.Exit(NOTHING_MOVED)
    if not verdict.answer.same_function:
        raise typer.Exit(DIFFERENT if verdict.answer.value == "different" else UNDECIDED)


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


def facts(verdict: "Verdict") -> dict[str, Any]:
    """A verdict as plain data."""
    from transformer_nfn.identity import parts_of

    found: dict[str, Any] = {
        "answer": verdict.answer.value,
        "reason": verdict.reason,
        "where": verdict.where,
        "largest_residual": _short(verdict.residual),
        "part_of_limit": _short(verdict.margin) if verdict.answer.same_function else None,
        "condition": _short(verdict.condition),
        "unknown_settings": [key[:60] for key in verdict.unknown_settings] or None,
        "outputs": None,
        "witness": None,
        "seed": verdict.seed,
    }
    if (agreement := verdict.agreement) is not None:
        found["outputs"] = {
            "times_rounding": _short(agreement.ratio),
            "times_rounding_on_one_input": _short(agreement.ratio_on_one),
            "difference": _short(agreement.difference),
            "rounding": _short(agreement.rounding),
            "inputs": agreement.inputs,
        }
    if (witness := verdict.witness) is not None:
        *source, own = parts_of(witness.inputs)
        found["witness"] = {
            "output": witness.head,
            "first": _short(witness.ours),
            "second": _short(witness.theirs),
            "difference": _short(witness.difference),
            "times_rounding": _short(witness.ratio),
            "deviations_along": _short(witness.along),
            "seed": witness.seed,
            "inputs": list(own.shape),
            "tokens": _ids(own),
        }
        if source:  # what the encoder was given
            found["witness"]["source"] = _ids(source[0])
    return found


def _ids(given: "Tensor") -> list[Any] | None:
    """Token ids, if that is what was given and there are not too many."""
    return None if given.is_floating_point() or given.numel() > 256 else given.tolist()


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
