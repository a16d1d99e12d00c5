"""Are two adapters the same function? Their products are linear maps, and are compared as such.

What is left between two products is measured in six ways, among them by the output and the input
direction in which it is largest beside what rounding does there: so no input is left out, and
nothing has to be run. Each is compared with what rounding both files at random makes of it.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from transformer_nfn.adapters.adapter import PLACE, Adapter, Module
from transformer_nfn.identity import Answer, Verdict, last_digit

#: Times of the most that some roundings of both files do: below AGREE rounding explains what is
#: left of a module, above APART it does not by far, and between nothing is decided.
AGREE, APART = 1.75, 4.0
#: Times of what rounding the matrices does that a run in their own dtype may be off; in another
#: dtype it may be this part of what comes out.
LOST, BLURRED = 8.0, 0.25
#: Rounding may be this part of a product, or so many times the last digit: more comes of matrices
#: that cancel, and would hide as much.
COARSE, COARSE_DIGITS = 0.02, 2.0**13
_DRAWS, _INPUTS = 16, 16
#: What float64 arithmetic does to a number, relatively, where the stored dtype is as fine.
_ARITHMETIC = 1e-13
_FLOAT64 = 1e-15


def same_adapters(
    ours: Adapter,
    theirs: Adapter,
    progress: Callable[[int], None] | None = None,
    *,
    seed: int | None = None,
) -> Verdict:
    """Whether two adapters add the same to the same modules of the same network.

    Args:
        ours: The first.
        theirs: The second.
        progress: Called with the number of modules compared so far.
        seed: Of the roundings; a fresh one if not given.
    """
    seed = secrets.randbits(48) if seed is None else seed
    if (why := _not_comparable(ours, theirs)) is not None:
        return Verdict(Answer.UNDECIDED, why, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    worst, where, equal = 0.0, None, ours.scale == theirs.scale
    for number, name in enumerate(ours.modules):
        one, two = ours.module(name), theirs.module(name)
        if not all(matrix.isfinite().all() for matrix in (*one, *two)):
            return Verdict(Answer.UNDECIDED, f"{name} has numbers that are not finite", where=name)
        equal = equal and all(
            a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(one, two, strict=True)
        )
        pair = _Pair((one, two), (ours.scale, theirs.scale))
        if (why := pair.blurred(generator)) is not None:
            return Verdict(Answer.UNDECIDED, why, where=name, seed=seed)
        if not equal and (ratio := pair.ratio(generator)) > worst:
            worst, where = ratio, name
        if progress is not None:
            progress(number + 1)
    if equal:
        return Verdict(Answer.SAME_TENSORS, "all tensors are the same, bit for bit", seed=seed)
    answer, reason = Answer.EQUIVALENT, "the products of all modules agree, for every input"
    if not worst <= AGREE:
        answer = Answer.DIFFERENT if worst > APART else Answer.UNDECIDED
        reason = f"a product is off by {worst:.3g} times what rounding does to it"
    at = None if answer is Answer.EQUIVALENT else where
    return Verdict(answer, reason, residual=worst, margin=worst / AGREE, where=at, seed=seed)


def _not_comparable(ours: Adapter, theirs: Adapter) -> str | None:
    """Why two adapters are not for the same modules of the same network, as far as files say."""
    for key in PLACE:
        one, two = (_plain(adapter.config.get(key)) for adapter in (ours, theirs))
        if one != two:
            return f"adapter_config.json differs in {key!r}, so they may be for other modules"
    if ours.modules != theirs.modules:
        only = sorted(set(ours.modules) ^ set(theirs.modules))
        return f"only one of them has {only[0][:80]!r}"
    for name in ours.modules:
        (x, y), (other_x, other_y) = (_sizes(adapter, name) for adapter in (ours, theirs))
        if (x, y) != (other_x, other_y):
            return f"{name[:80]!r} is of {x} and {y} numbers here, {other_x} and {other_y} there"
    return None


def _plain(value: object) -> str:
    """What a config says, lists of names in no order; 0 is not false."""
    return repr(sorted(map(repr, value)) if isinstance(value, list) else value)


def _sizes(adapter: Adapter, name: str) -> tuple[int, int]:
    down, up = adapter.stored_entries(name)
    return down.shape[1], up.shape[0]


@dataclass(frozen=True)
class _Difference:
    """left @ right, which is small beside its factors."""

    left: Float[Tensor, "y k"]
    right: Float[Tensor, "k x"]


@dataclass(frozen=True)
class _Spread:
    """What rounding does to a difference, by rows: its covariance is diag(own) + shared sharedᵀ."""

    own: Float[Tensor, " y"]
    shared: Float[Tensor, "y k"]


class _Pair:
    """What two adapters add to one module; the scales are in their B."""

    def __init__(self, modules: tuple[Module, Module], scales: tuple[float, float]) -> None:
        self._modules, self._scales = modules, scales
        both = list(zip(modules, scales, strict=True))
        self._downs = [module.down.double() for module in modules]
        self._ups = [scale * module.up.double() for module, scale in both]
        self._down_digits = [_digit(module.down) for module in modules]
        self._up_digits = [abs(scale) * _digit(module.up) for module, scale in both]
        self._outputs = _spread(self._ups, self._up_digits, self._downs, self._down_digits)
        self._inputs = _spread(
            *([matrix.T for matrix in each] for each in (self._downs, self._down_digits)),
            *([matrix.T for matrix in each] for each in (self._ups, self._up_digits)),
        )

    def ratio(self, generator: torch.Generator) -> float:
        """How much more there is between the products than rounding explains, where it is most."""
        left = torch.cat([self._ups[0], -self._ups[1]], dim=1)
        found = self._statistics(_Difference(left, torch.cat(self._downs)))
        drawn = [self._statistics(self._rounding(generator)) for _ in range(_DRAWS)]
        ratios = torch.where(found == 0, 0.0, found / torch.stack(drawn).amax(dim=0))
        return float(ratios.nan_to_num(nan=torch.inf).max())

    def _rounding(self, generator: torch.Generator) -> _Difference:
        """What one rounding of both files does: (B + b)(A + a) - B A = b (A + a) + B a."""
        left, right = [], []
        for up, down, *digits in zip(
            self._ups, self._downs, self._up_digits, self._down_digits, strict=True
        ):
            b, a = (
                (torch.rand(digit.shape, generator=generator, dtype=torch.float64) - 0.5) * digit
                for digit in digits
            )
            left += [b, up]
            right += [down + a, a]
        return _Difference(torch.cat(left, dim=1), torch.cat(right))

    def _statistics(self, difference: _Difference) -> Float[Tensor, " s"]:
        """In all, of a row and a column beside its rounding, and in the worst directions.

        The factors go through QR first: what is small is then computed with digits of its own.
        """
        outer, first = torch.linalg.qr(difference.left)
        inner, second = torch.linalg.qr(difference.right.T)
        core = first @ second.T
        sides = (outer @ core, self._outputs), (inner @ core.T, self._inputs)
        return torch.stack(
            [
                core.norm(),
                _largest_singular_value(core),
                *(_largest_row(rows, spread) for rows, spread in sides),
                *(_worst_direction(rows, spread) for rows, spread in sides),
            ]
        )

    def blurred(self, generator: torch.Generator) -> str | None:
        """Why these products cannot be compared, if so."""
        rounding = self._rounding(generator)
        x = torch.randn(rounding.right.shape[1], _INPUTS, generator=generator, dtype=torch.float64)
        off = (rounding.left @ (rounding.right @ x)).norm()
        for module, scale, up, down in zip(
            self._modules, self._scales, self._ups, self._downs, strict=True
        ):
            exact = up @ (down @ x)
            digit = max(_ARITHMETIC, *(torch.finfo(each.dtype).eps for each in self._all))
            if off > min(COARSE, COARSE_DIGITS * digit) * exact.norm():
                return "rounding alone changes a product by far more than the last digit"
            for dtype in {module.up.dtype, module.down.dtype, torch.float32}:
                read = (module.down.to(dtype).double() @ x).to(dtype).double()
                made = (module.up.to(dtype).double() @ read).to(dtype).double()
                lost = ((made * scale).to(dtype).double() - exact).norm().nan_to_num(nan=torch.inf)
                own = dtype in (module.up.dtype, module.down.dtype)
                if lost > (LOST * off if own else BLURRED * exact.norm()):
                    return f"a run in {dtype} is off by far more than rounding"
        return None

    @property
    def _all(self) -> list[Tensor]:
        return [matrix for module in self._modules for matrix in module]


def _spread(
    ups: list[Tensor], up_digits: list[Tensor], downs: list[Tensor], down_digits: list[Tensor]
) -> _Spread:
    """Of the rows of Σ up @ down: b A has a variance of its own in each, B a is shared by all."""
    own, shared = torch.zeros(len(ups[0]), dtype=torch.float64), []
    for up, up_digit, down, down_digit in zip(ups, up_digits, downs, down_digits, strict=True):
        own = own + up_digit.square() / 12 @ down.square().sum(dim=1)
        # Where a row is 0 there is still what float64 arithmetic leaves of the others.
        own = own + _FLOAT64**2 * up.square().sum() * down.square().sum()
        shared.append(up * (down_digit.square() / 12).sum(dim=1).sqrt())
    return _Spread(own, torch.cat(shared, dim=1))


def _digit(matrix: Tensor) -> Tensor:
    """The last digit of each number; a stored 0 is exact."""
    return torch.maximum(last_digit(matrix), _ARITHMETIC * matrix.double().abs()) * (matrix != 0)


def _largest_singular_value(matrix: Tensor) -> Tensor:
    found: Tensor = torch.linalg.matrix_norm(matrix, 2)
    return found


def _largest_row(rows: Float[Tensor, "y k"], spread: _Spread) -> Tensor:
    """Of all rows the one that is largest beside what rounding does to it."""
    expected = (spread.own + spread.shared.square().sum(dim=1)).sqrt()
    sizes = rows.norm(dim=1)
    return torch.where(sizes == 0, 0.0, sizes / expected).amax()


def _worst_direction(rows: Float[Tensor, "y k"], spread: _Spread) -> Tensor:
    """Max over u of |uᵀ D| beside what rounding does along u.

    The rows are divided by the root of its covariance: that is what is left of a least squares
    problem with [shared; 1], which needs no inverse of an almost singular matrix.
    """
    scale, width = spread.own.clamp_min(1e-300).rsqrt().unsqueeze(1), spread.shared.shape[1]
    stacked = torch.cat([scale * spread.shared, torch.eye(width, dtype=torch.float64)])
    basis, _ = torch.linalg.qr(stacked)
    wanted = torch.cat([scale * rows, rows.new_zeros(width, rows.shape[1])])
    return _largest_singular_value(wanted - basis @ (basis.T @ wanted))
