"""The pieces of the match: bases, heads, neurons, certificates."""

import pytest
import torch

from transformer_nfn.group import conditioned, relative_error
from transformer_nfn.identity.comparing.heads import Heads, form_distances
from transformer_nfn.identity.matching.bases import find_basis
from transformer_nfn.identity.matching.heads import between, between_pairs, match_heads
from transformer_nfn.identity.matching.neurons import match_neurons
from transformer_nfn.space import StreamKind


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def test_a_rotation_is_found_and_a_changed_table_keeps_its_basis() -> None:
    rows, R = normal(50, 9), conditioned(1.0)((), 9, torch.Generator().manual_seed(1))
    sizes = 6e-8 * rows.norm(dim=1)
    options = {"rounding": 6e-8, "fix_ones": False, "sizes": sizes}
    found = find_basis(rows, rows @ R, **options)
    assert found is not None
    assert relative_error(found.matrix, R) < 1e-12
    assert find_basis(rows, rows, **options) is None
    assert find_basis(rows, rows + 0.05 * normal(50, 9, seed=2), **options) is None


def test_where_rows_say_nothing_the_basis_is_the_identity() -> None:
    rows = normal(4, 9)
    rows[:, 4:] = 0
    R = torch.eye(9, dtype=torch.float64)
    R[:4, :4] = conditioned(1.0)((), 4, torch.Generator().manual_seed(1))
    sizes = 6e-8 * rows.norm(dim=1)
    found = find_basis(rows, rows @ R, rounding=6e-8, fix_ones=False, sizes=sizes)
    assert found is not None
    assert relative_error(found.matrix, R) < 1e-10


def test_how_well_a_basis_is_known() -> None:
    """Of rows with some large coordinates: it is off by as much as it says of itself."""
    D, draws, off = 9, 60, 1e-6
    rows = normal(40, D) * torch.logspace(0, 1.5, D, dtype=torch.float64)
    R = conditioned(1.0)((), D, torch.Generator().manual_seed(1))
    others = normal(5, D, seed=2)
    sizes = torch.full((40,), off * D**0.5, dtype=torch.float64)
    errors, spreads, drawn = [], [], []
    for seed in range(draws):
        rounded = rows @ R + off * normal(40, D, seed=100 + seed)
        found = find_basis(rows, rounded, rounding=off, fix_ones=False, sizes=sizes)
        assert found is not None
        errors.append((others @ (found.matrix - R)).square().sum(dim=1))
        spreads.append(found.spread(others @ R))
        drawn.append((others @ (found.drawn(seed) - found.matrix)).square().sum(dim=1))
    seen, said, again = (torch.stack(each).mean(dim=0) for each in (errors, spreads, drawn))
    assert (seen / said - 1).abs().max() < 0.35
    assert (again / said - 1).abs().max() < 0.35


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_permutation_with_a_sign_is_found(sign: float) -> None:
    rows, order = normal(50, 9), torch.randperm(9)
    moved, sizes = sign * rows[:, order], 6e-8 * rows.norm(dim=1)
    found = find_basis(
        rows, moved, kind=StreamKind.FLIPPED, rounding=6e-8, fix_ones=True, sizes=sizes
    )
    assert found is not None
    assert torch.equal(rows @ found.matrix, moved)


def heads(rotary: bool, seed: int = 0) -> Heads:
    g, m = (2, 3) if rotary else (4, 1)
    return Heads(
        normal(g, m, 11, 4, seed=seed),
        normal(g, 11, 4, seed=seed + 1),
        normal(g, 11, 5, seed=seed + 2),
        normal(g, m, 5, 10, seed=seed + 3),
        rotary,
    )


@pytest.mark.parametrize("rotary", [False, True])
def test_distances_from_small_matrices_are_those_of_the_products(rotary: bool) -> None:
    a, b = heads(rotary), heads(rotary, seed=9)
    qk, vo = form_distances(a, b, outputs=True)

    def products(x: Heads) -> tuple[torch.Tensor, torch.Tensor]:
        V, O = x.V, x.O
        if rotary:
            q, k = (torch.complex(*t.chunk(2, dim=-1)) for t in (x.Q, x.K))
            looks = torch.view_as_real(torch.einsum("gmxj,gyj->gmxyj", q, k.conj()))
        else:
            looks = torch.einsum("gmxk,gyk->gmxy", x.Q, x.K)
        return looks.flatten(2), torch.einsum("gxv,gmvy->gmxy", V, O).flatten(2)

    for got, one, two in zip((qk, vo), products(a), products(b), strict=True):
        square = (one[:, :, None, None] - two).square().sum(-1)
        sizes = one.square().sum(-1)[:, :, None, None], two.square().sum(-1)
        assert relative_error(got, square / torch.maximum(*torch.broadcast_tensors(*sizes))) < 1e-12


def test_heads_are_paired_inside_their_groups() -> None:
    b = heads(True)
    groups, inside = torch.tensor([1, 0]), torch.tensor([[2, 0, 1], [1, 2, 0]])
    a = b.pick(groups, inside)  # a different order of the same heads
    found, order, _ = match_heads(a, b, outputs=True)
    assert torch.equal(a.pick(found, order).Q, b.Q)
    assert torch.equal(a.pick(found, order).O, b.O)


def test_the_matrix_between_two_heads_explains_both_sides() -> None:
    P, R = normal(3, 20, 4), normal(3, 15, 4, seed=1)
    M = conditioned(1000.0)((3,), 4, torch.Generator().manual_seed(0))
    P2, R2 = ((x.float().double()) for x in (P @ M, R @ torch.linalg.inv(M).mT))
    found = between(P, P2, R, R2)
    assert relative_error(P @ found, P2) < 1e-6
    assert relative_error(R @ torch.linalg.inv(found).mT, R2) < 1e-6
    # Least squares on one side alone leaves the other to the condition number.
    alone = torch.linalg.lstsq(P, P2).solution
    assert relative_error(R @ torch.linalg.inv(alone).mT, R2) > 2 * relative_error(
        R @ torch.linalg.inv(found).mT, R2
    )


def test_complex_numbers_between_pairs() -> None:
    Q, K = normal(2, 12, 6), normal(2, 9, 6, seed=1)
    c = torch.polar(normal(2, 3, seed=2).abs() + 0.1, normal(2, 3, seed=3))

    def times(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
        moved = torch.complex(*x.chunk(2, dim=-1)) * number.unsqueeze(1)
        return torch.cat([moved.real, moved.imag], dim=-1)

    found = between_pairs(Q, times(Q, c), K, times(K, 1 / c.conj()))
    assert relative_error(found, torch.view_as_real(c)) < 1e-12


def test_neurons_are_found_also_where_some_are_equal_or_nothing() -> None:
    ours = normal(300, 20)
    ours[10] = ours[11]
    ours[20:25] = 0
    order = torch.randperm(300)
    theirs = ours[order] * (1 + 1e-3 * normal(300, 20, seed=1))
    found = match_neurons(ours, theirs)
    assert torch.equal(found.sort().values, torch.arange(300))
    assert relative_error(ours[found], theirs) < 2e-3
