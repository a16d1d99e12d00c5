"""A verdict of `same`: as plain data, and in words."""

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

    if verdict.witness is None or (said := what_both_say(ours, theirs, verdict.witness)) is None:
        return
    words = _vocabulary(ours) if said.words else {}
    found["witness"]["said"] = {
        "position": said.position,
        **{
            name: {
                "output": choice.output,
                "word": words.get(choice.output),
                "probability": short(choice.probability),
            }
            for name, choice in (("first", said.first), ("second", said.second))
        },
    }
    ids = found["witness"]["tokens"]
    if words and ids:
        row = ids[0] if isinstance(ids[0], list) else ids
        found["witness"]["words"] = [words.get(number) for number in row]


def _vocabulary(checkpoint: "Checkpoint") -> dict[int, str]:
    from pathlib import Path

    from transformer_nfn.checkpoints import read_vocabulary

    path = checkpoint.path
    if not isinstance(path, Path):
        return {}
    return read_vocabulary(path if path.is_dir() else path.parent)


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
        lines.append(("seen on", _seen_on(witness)))
        lines.append(("outputs", _said(witness)))
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


def _seen_on(witness: dict[str, Any]) -> str:
    if (ids := witness["tokens"]) is None:
        return f"a random input of shape {' × '.join(map(str, witness['inputs']))}"
    row = ids[0] if ids and isinstance(ids[0], list) else ids
    words = witness.get("words") or []
    shown = [
        repr(words[i]) if i < len(words) and words[i] is not None else str(number)
        for i, number in enumerate(row[:_SHOWN])
    ]
    more = ", …" if len(row) > _SHOWN else ""
    return f"{counted(len(row), 'random token')}: {', '.join(shown)}{more}"


def _said(witness: dict[str, Any]) -> str:
    ratio = short_number(witness["times_rounding"]) if witness["times_rounding"] else "many"
    apart = f"apart by {ratio} times what rounding does"
    if (said := witness.get("said")) is None:
        one, two = (
            "no number" if value is None else short_number(value)
            for value in (witness["first"], witness["second"])
        )
        return f"{witness['output']} is {one} in the first and {two} in the second, {apart}"
    place = "" if said["position"] is None else f"after token {said['position'] + 1} "
    first, second = (_choice(said[name]) for name in ("first", "second"))
    return f"{place}the first says {first}, the second {second}; {apart}"


def _choice(choice: dict[str, Any]) -> str:
    name = repr(choice["word"]) if choice["word"] is not None else f"number {choice['output']}"
    return f"{name} with {choice['probability']:.2f}"


def _ids(given: "Tensor") -> list[Any] | None:
    """Token ids, if that is what was given and there are not too many."""
    return None if given.is_floating_point() or given.numel() > 256 else given.tolist()


def short(value: float | None) -> float | None:
    """Four digits of a figure."""
    return None if value is None else float(f"{value:.4g}")
