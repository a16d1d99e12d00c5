"""A verdict of `same`: as plain data, and in words."""

from math import isfinite
from typing import TYPE_CHECKING, Any

from transformer_nfn.cli.wording import counted, short_number

if TYPE_CHECKING:
    from torch import Tensor

    from transformer_nfn.checkpoints import Checkpoint
    from transformer_nfn.identity import Verdict, Witness

#: Tokens of a witness that are shown.
_SHOWN = 8


def facts(verdict: "Verdict") -> dict[str, Any]:
    """A verdict as plain data."""
    found: dict[str, Any] = {
        "answer": verdict.answer.value,
        "reason": verdict.reason,
        "where": verdict.where,
        "largest_residual": short(verdict.residual),
        "part_of_limit": short(verdict.margin) if verdict.answer.same_function else None,
        "condition": short(verdict.condition),
        "unknown_settings": [key[:60] for key in verdict.unknown_settings] or None,
        "outputs": None,
        "witness": None,
        "seed": verdict.seed,
    }
    if (agreement := verdict.agreement) is not None:
        found["outputs"] = {
            "times_rounding": short(agreement.ratio),
            "times_rounding_on_one_input": short(agreement.ratio_on_one),
            "difference": short(agreement.difference),
            "rounding": short(agreement.rounding),
            "inputs": agreement.inputs,
        }
    if (witness := verdict.witness) is not None:
        found["witness"] = _witness(witness)
    return found


def _witness(witness: "Witness") -> dict[str, Any]:
    from transformer_nfn.identity import parts_of

    *source, own = parts_of(witness.inputs)
    found = {
        "output": witness.head,
        "first": short(witness.ours),
        "second": short(witness.theirs),
        "difference": short(witness.difference),
        "times_rounding": short(witness.ratio),
        "deviations_along": short(witness.along),
        "seed": witness.seed,
        "inputs": list(own.shape),
        "tokens": _ids(own),
    }
    if source:  # what the encoder was given
        found["source"] = _ids(source[0])
    return found


def add_saying(found: dict[str, Any], verdict: "Verdict", ours: Any, theirs: Any) -> None:
    """Add what both say on the witness, where outputs are choices; with words where known.

    Args:
        found: The facts of the verdict.
        verdict: A verdict.
        ours: The first checkpoint.
        theirs: The second.
    """
    from transformer_nfn.identity import what_both_say

    if verdict.witness is None:
        return
    known = [_vocabulary(one) for one in (ours, theirs)]
    # A file without a tokenizer is read with the other's.
    words, others = known[0] or known[1], known[1] or known[0]
    ids = found["witness"]["tokens"]
    if words and ids and verdict.witness.along is None:
        found["witness"]["words"] = [words.get(number) for number in _row(ids)]
    if (said := what_both_say(ours, theirs, verdict.witness)) is None:
        return
    found["witness"]["said"] = {
        "position": said.position,
        **{
            name: {
                "output": choice.output,
                "word": table.get(choice.output) if said.words else None,
                "probability": short(choice.probability),
            }
            for name, choice, table in (
                ("first", said.first, words),
                ("second", said.second, others),
            )
        },
    }


def _row(ids: list[Any]) -> list[int]:
    """The token ids of an input; some networks are given the kinds of tokens in a second row."""
    return ids[0] if isinstance(ids[0], list) else ids


def _vocabulary(checkpoint: "Checkpoint") -> dict[int, str]:
    from pathlib import Path

    from transformer_nfn.checkpoints import read_vocabulary

    path = checkpoint.path
    if checkpoint.words is None or not isinstance(path, Path):
        return {}
    words = read_vocabulary(path if path.is_dir() else path.parent)
    # A tokenizer with more words than the network has is another network's.
    rows = checkpoint.files.entry(checkpoint.words).shape[0]
    return words if all(0 <= number < rows for number in words) else {}


def in_words(found: dict[str, Any]) -> list[tuple[str, str]]:
    """The facts of a verdict as a person wants to read them: a word each, and a sentence."""
    lines = [("why", found["reason"])]
    if found["where"] and found["where"] not in found["reason"]:
        lines.append(("where", found["where"]))
    if found["part_of_limit"] is not None:
        lines.append(
            (
                "weights",
                f"what is left after it is {short_number(found['largest_residual'])} times what "
                f"rounding does, {found['part_of_limit']:.0%} of the limit",
            )
        )
    if (outputs := found["outputs"]) is not None:
        lines.append(
            (
                "outputs",
                f"on {counted(outputs['inputs'], 'input')} apart by "
                f"{short_number(outputs['times_rounding'])} times what rounding does",
            )
        )
    if (witness := found["witness"]) is not None:
        # An input that was tried need not show a difference beyond rounding.
        seen = "seen on" if found["answer"] == "different" else "tried on"
        lines += [(seen, tried_on(witness)), ("outputs", _said(witness))]
    if (cause := found.get("cause")) is not None:
        lines.append(("cause", cause_in_words(cause)))
    if found.get("moved_tensors") is not None:
        lines.append(("moved", counted(found["moved_tensors"], "tensor")))
    written = ("certificate", "plot", "html")
    lines += [(name, found[name]) for name in written if found.get(name)]
    if found["unknown_settings"]:
        keys = ", ".join(found["unknown_settings"])
        lines.append(("not known", f"what these settings do, the same in both: {keys}"))
    if found["seed"] is not None and (found["outputs"] or witness):
        lines.append(("repeat", f"--seed {found['seed']}"))
    return lines


def cause_in_words(cause: dict[str, Any]) -> str:
    """The mistake that explains a difference."""
    return "; ".join(str(text) for text in cause.values() if isinstance(text, str) and text)


def tried_on(witness: dict[str, Any], most: int = _SHOWN) -> str:
    """The input of a witness.

    Args:
        witness: Its facts.
        most: Tokens that are shown.
    """
    shape = witness["inputs"]
    if witness["deviations_along"] is not None:
        return f"{counted(shape[0], 'random input')}, which only together show it"
    if ids := witness["tokens"]:
        row = _row(ids)
        words = witness.get("words") or [None] * len(row)
        pairs = list(zip(row, words, strict=False))[:most]
        shown = [str(number) if word is None else repr(word) for number, word in pairs]
        more = ", …" if len(row) > most else ""
        text = f"{counted(len(row), 'random token')}: {', '.join(shown)}{more}"
    elif len(shape) == 1:
        text = counted(shape[0], "random token")
    else:
        text = f"a random input of shape {' × '.join(map(str, shape))}"
    if "source" not in witness:
        return text
    source = witness["source"]
    given = "a random input" if source is None else counted(len(_row(source)), "random token")
    return f"{text}; the encoder was given {given}"


def _said(witness: dict[str, Any]) -> str:
    apart = f"apart by {_ratio(witness['times_rounding'])} times what rounding does"
    if (along := witness["deviations_along"]) is not None:
        apart += (
            f", and by {_ratio(along)} standard deviations of rounding in the way that the "
            "suspected weights predict"
        )
    if (said := witness.get("said")) is None:
        one, two = (short_number(witness[name]) for name in ("first", "second"))
        where = f"where {witness['output']} differs most"
        return f"{where}, it is {one} in the first and {two} in the second; {apart}"
    place = "" if said["position"] is None else f" at token {said['position'] + 1}"
    names = [name_of_choice(said[name]) for name in ("first", "second")]
    sure = [f"{said[name]['probability']:.3g}" for name in ("first", "second")]
    if said["first"]["output"] == said["second"]["output"]:
        both = f"both prefer {names[0]}, with probability {sure[0]} and {sure[1]}"
    else:
        both = (
            f"the first prefers {names[0]} with probability {sure[0]}, "
            f"the second {names[1]} with {sure[1]}"
        )
    return f"{witness['output']}{place}: {both}; {apart}"


def _ratio(value: float) -> str:
    return short_number(value) if isfinite(value) else "infinitely many"


def name_of_choice(choice: dict[str, Any]) -> str:
    """The output that a network prefers: a word where it is known."""
    return f"output {choice['output']}" if choice["word"] is None else repr(choice["word"])


def _ids(given: "Tensor") -> list[Any] | None:
    """Token ids, if that is what was given and there are not too many."""
    return None if given.is_floating_point() or given.numel() > 256 else given.tolist()


def short(value: float | None) -> float | None:
    """Four digits of a figure."""
    return None if value is None else float(f"{value:.4g}")
