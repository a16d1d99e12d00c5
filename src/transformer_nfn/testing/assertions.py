"""Assertions on two models, with messages that a person can act on."""

from dataclasses import dataclass
from math import exp, nan

from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint, Config, Model, opened
from transformer_nfn.identity import (
    Verdict,
    compare_bodies,
    draw_inputs,
    find_cause,
    fresh_seed,
    moved_tensors,
    run,
    same,
)
from transformer_nfn.kinship import LEVEL, Kin, Relation, kin


@dataclass(frozen=True)
class Closeness:
    """How near the outputs of two models are on drawn inputs; no proof of anything.

    Attributes:
        outputs: Of each head, or of the hidden states, the root mean square of the difference over
            that of the first's outputs.
        seed: Of the inputs.
    """

    outputs: dict[str, float]
    seed: int

    @property
    def largest(self) -> float:
        """Of all outputs; NaN if one is."""
        values = list(self.outputs.values())
        return max(values) if all(value == value for value in values) else nan


def assert_same_function(
    first: Model,
    second: Model,
    *,
    config_first: Config = None,
    config_second: Config = None,
    seed: int | None = None,
    moved: bool = False,
    only: str | None = None,
) -> Verdict:
    """Two models compute the same, whatever coordinates their weights are in.

    For what must not change a model: norms folded, rotations, fused and split tensors, renamed,
    resharded, converted.

    Args:
        first: A path or URL, a model of `transformers`, or tensors by name.
        second: Another.
        config_first: Of the first, where it is tensors.
        config_second: Of the second.
        seed: Of the inputs on which both are run; fresh ones if None.
        moved: Whether numbers must differ, beyond rounding: a rotation that did nothing changes
            no function either.
        only: A part of both, "body" without heads, "encoder", or a tower such as "vision_model".

    Raises:
        AssertionError: If they do not, or it cannot be decided; or nothing moved that should.
    """
    with opened(first, config_first, only) as one, opened(second, config_second, only) as two:
        verdict = compare_bodies(one, two, same(one, two, seed=seed))
        cause = None if verdict.answer.same_function else find_cause(one, two)
        still = moved and verdict.answer.same_function and not moved_tensors(one, two)
    if still:
        raise AssertionError(
            "nothing moved: all tensors have the same numbers, up to rounding; what should have "
            "changed them did not run, or not on this model"
        )
    if not verdict.answer.same_function:
        lines = [f"not the same function: {verdict.answer.value}", verdict.reason]
        if verdict.where is not None:
            lines.append(f"the first place that differs: {verdict.where}")
        if verdict.witness is not None:
            lines.append(f"an input on which they differ: {verdict.witness}")
        if cause is not None:
            lines += [f"the cause is {cause.name}: {cause.says}", cause.evidence]
        lines.append(f"again with the same inputs: seed={verdict.seed}")
        raise AssertionError("\n  ".join(lines))
    return verdict


def assert_kin(
    first: Model, second: Model, *, config_first: Config = None, config_second: Config = None
) -> Kin:
    """One model comes from the other, or both from one start.

    For what changes a model and keeps its neurons: quantised, pruned, fine-tuned, merged.

    Args:
        first: A path or URL, a model of `transformers`, or tensors by name.
        second: Another.
        config_first: Of the first, where it is tensors.
        config_second: Of the second.

    Raises:
        AssertionError: If nothing says so.
    """
    with opened(first, config_first) as one, opened(second, config_second) as two:
        found = kin(one, two)
    if found.relation is not Relation.COPY and exp(found.log_p) > LEVEL:
        raise AssertionError(
            f"not kin: {found.relation.value}\n  {found.reason}\n  p is {exp(found.log_p):.2g}, "
            f"and {LEVEL:g} would do; neurons in another order hide it (tnfn kin --disguised)"
        )
    return found


def assert_within(
    first: Model,
    second: Model,
    tolerance: float,
    *,
    config_first: Config = None,
    config_second: Config = None,
    seed: int | None = None,
    only: str | None = None,
) -> Closeness:
    """The outputs of two models agree within a tolerance on drawn inputs.

    For what is meant to change a model a little, such as quantising it. It says nothing of inputs
    that were not drawn, and "agrees within" is not "the same".

    Args:
        first: A path or URL, a model of `transformers`, or tensors by name.
        second: Another.
        tolerance: Of each output, relative to the size of the first's: 0.01 is one per cent.
        config_first: Of the first, where it is tensors.
        config_second: Of the second.
        seed: Of the inputs; fresh ones if None.
        only: A part of both, as in `assert_same_function`.

    Raises:
        AssertionError: If they do not, or one has outputs that the other has not.
    """
    seed = fresh_seed() if seed is None else seed
    with opened(first, config_first, only) as one, opened(second, config_second, only) as two:
        found = _closeness(one, two, seed)
    beyond = [name for name, value in found.outputs.items() if not value <= tolerance]  # or NaN
    if beyond:
        worst = max(beyond, key=lambda name: found.outputs[name])
        raise AssertionError(
            f"{worst} of the two differs by {found.outputs[worst]:.3g} of its size, and "
            f"{tolerance:g} is allowed\n  all outputs: "
            + ", ".join(f"{name} {value:.3g}" for name, value in found.outputs.items())
            + f"\n  again with the same inputs: seed={seed}"
        )
    return found


def _closeness(one: Checkpoint, two: Checkpoint, seed: int) -> Closeness:
    inputs = draw_inputs(one, two, seed=seed)
    ours, theirs = run(one, inputs), run(two, inputs)
    if ours.keys() != theirs.keys():
        raise AssertionError(
            f"one gives {', '.join(sorted(ours))}, the other {', '.join(sorted(theirs))}"
        )
    return Closeness({name: _apart(ours[name], theirs[name]) for name in ours}, seed)


def _apart(ours: Tensor, theirs: Tensor) -> float:
    if ours.shape != theirs.shape:
        raise AssertionError(f"outputs of {tuple(ours.shape)} and of {tuple(theirs.shape)}")
    return float((ours - theirs).norm() / ours.norm().clamp_min(1e-300))
