import pytest
import torch
from hypothesis import given

from tests.strategies import batches, generator, seeds, specs
from transformer_nfn.group import (
    GroupElement,
    conditioned,
    random_element,
    relative_error,
    uniform,
)
from transformer_nfn.space import (
    GROUPED,
    PAPER,
    RELU,
    RESIDUAL,
    ROTARY,
    Attention,
    BlockSpec,
    DeclarationError,
    Experts,
    Half,
    Kind,
    ShapeError,
    WeightBatch,
    apply_blocks,
    compose,
    declare,
    free,
)

LAW = 1e-12


def draw(batch: WeightBatch, seed: int) -> GroupElement:
    return random_element(
        batch.spec, networks=batch.networks, blocks=batch.blocks, generator=generator(seed)
    )


@given(batches(), seeds)
def test_identity(batch: WeightBatch, seed: int) -> None:
    one = GroupElement.identity(batch.spec, networks=batch.networks, blocks=batch.blocks)
    g = draw(batch, seed)
    assert relative_error(one(batch), batch) <= LAW
    assert relative_error((one @ g)(batch), g(batch)) <= LAW
    assert relative_error((g @ one)(batch), g(batch)) <= LAW


@given(batches(), seeds, seeds)
def test_product_acts_as_one_after_the_other(batch: WeightBatch, s1: int, s2: int) -> None:
    g, h = draw(batch, s1), draw(batch, s2)
    assert relative_error((g @ h)(batch), g(h(batch))) <= LAW


@given(batches(), seeds, seeds, seeds)
def test_product_is_associative(batch: WeightBatch, s1: int, s2: int, s3: int) -> None:
    f, g, h = draw(batch, s1), draw(batch, s2), draw(batch, s3)
    left, right = (f @ g) @ h, f @ (g @ h)
    for label, part in left.parts.items():
        assert relative_error(part.double(), right.parts[label].double()) <= LAW


@given(batches(), seeds)
def test_inverse_undoes(batch: WeightBatch, seed: int) -> None:
    g = draw(batch, seed)
    assert relative_error(g.inverse()(g(batch)), batch) <= LAW
    assert relative_error(g(g.inverse()(batch)), batch) <= LAW
    one = GroupElement.identity(batch.spec, networks=batch.networks, blocks=batch.blocks)
    for label, part in (g @ g.inverse()).parts.items():
        assert relative_error(part.double(), one.parts[label].double()) <= LAW


@given(batches(), seeds)
def test_the_product_of_the_wrong_order_is_another_element(batch: WeightBatch, seed: int) -> None:
    """Negative control: the laws would not notice a commutative group."""
    g, h = draw(batch, seed), draw(batch, seed ^ 1)
    assert relative_error((h @ g)(batch), g(h(batch))) > 1e-3


@given(batches(channels=1), seeds)
def test_the_function_of_the_blocks_is_unchanged(batch: WeightBatch, seed: int) -> None:
    """The paper's theorem "Invariance of Attn", for each declared block."""
    tokens = torch.randn(
        batch.networks, 5, batch.spec.size("x"), dtype=torch.float64, generator=generator(seed)
    )
    got = apply_blocks(draw(batch, seed)(batch), tokens, eps=0.0)
    assert relative_error(got, apply_blocks(batch, tokens, eps=0.0)) <= 1e-10


@given(batches(PAPER), seeds)
def test_the_action_is_the_paper_s_definition(batch: WeightBatch, seed: int) -> None:
    """Definition "Group action", letter by letter, with M = G_kᵀ and N = G_v."""
    g = draw(batch, seed)
    got = g(batch)
    for n in range(batch.networks):
        for b in range(batch.blocks):
            tau, pi_o, pi_a = (g.parts[label][n, b] for label in "hra")
            m, big_n = g.parts["k"][n, b].mT, g.parts["v"][n, b]
            w = {name: batch[name][n, :, b] for name in batch.tensors}
            out = {name: got[name][n, :, b] for name in got.tensors}
            for i in range(batch.spec.size("h")):
                t = int(tau[i])
                q = w["Q"][:, t] @ m[t].T
                k = w["K"][:, t] @ torch.linalg.inv(m[t])
                v = w["V"][:, t] @ big_n[t]
                o = (torch.linalg.inv(big_n[t]) @ w["O"][:, t])[..., pi_o]
                for name, expected in zip("QKVO", (q, k, v, o), strict=True):
                    assert relative_error(out[name][:, i], expected) <= LAW
            assert torch.equal(out["A"], w["A"][:, pi_o][..., pi_a])
            assert torch.equal(out["B"], w["B"][:, pi_a])
            assert torch.equal(out["bA"], w["bA"][:, pi_a])
            assert torch.equal(out["bB"], w["bB"])


@given(batches(), seeds)
def test_products_move_as_their_axes_say(batch: WeightBatch, seed: int) -> None:
    """Proposition "entries under group action": QK stays, VO is permuted by π_O."""
    g = draw(batch, seed)
    for name, product in batch.spec.block.products.items():
        expected = g.act(batch.product(name), product.indices)
        assert relative_error(g(batch).product(name), expected) <= 1e-11


@given(batches(RESIDUAL, channels=1), seeds)
def test_pi_o_changes_the_function_of_a_residual_block(batch: WeightBatch, seed: int) -> None:
    """Negative control: the paper's π_O is no symmetry where a skip connection reads the axis."""
    tokens = torch.randn(
        batch.networks, 5, batch.spec.size("x"), dtype=torch.float64, generator=generator(seed)
    )
    roll = torch.arange(batch.spec.size("x")).roll(1)
    moved = batch.replace({"O": batch["O"][..., roll], "A": batch["A"][:, :, :, roll]})
    expected = apply_blocks(batch, tokens, eps=0.0)
    assert relative_error(apply_blocks(moved, tokens, eps=0.0), expected) > 1e-3


@given(specs(GROUPED), seeds)
def test_each_group_permutes_its_heads_by_itself(spec: BlockSpec, seed: int) -> None:
    g = random_element(spec, generator=generator(seed))
    assert g.parts["m"].shape == (1, 1, spec.size("g"), spec.size("m"))
    assert g.parts["k"].shape == (1, 1, spec.size("g"), spec.size("k"), spec.size("k"))


@given(specs(), seeds)
def test_one_element_serves_a_batch(spec: BlockSpec, seed: int) -> None:
    batch = WeightBatch.random(
        spec, networks=3, blocks=2, generator=generator(seed), dtype=torch.float64
    )
    g = random_element(spec, blocks=2, generator=generator(seed))
    assert relative_error(g(batch)[1:2], g(batch[1:2])) <= LAW


@given(specs(), seeds)
def test_condition_number_is_what_was_asked_for(spec: BlockSpec, seed: int) -> None:
    g = random_element(spec, generator=generator(seed), matrices=conditioned(100.0))
    for label, axis in spec.block.axes.items():
        if axis.kind is Kind.LINEAR:
            assert torch.linalg.cond(g.parts[label]).flatten().tolist() == pytest.approx(
                [100.0] * g.parts[label][..., 0, 0].numel()
            )


EXPERTS = compose(
    "experts",
    Half(Attention(), "rms"),
    Half(Experts("silu", chosen=2, scales=True), "rms"),
)


@given(batches(EXPERTS), seeds)
def test_scales_of_neurons_of_experts(batch: WeightBatch, seed: int) -> None:
    """An axis that is indexed by one that is indexed: the laws, and each part in its place."""
    g, h = draw(batch, seed), draw(batch, seed + 1)
    assert relative_error((g @ h)(batch), g(h(batch))) <= LAW
    assert relative_error(g.inverse()(g(batch)), batch) <= LAW
    moved, u, a, s = g(batch), g.parts["u"], g.parts["a"], g.parts["s"]
    for n in range(batch.networks):
        for block in range(batch.blocks):
            place = (min(n, len(u) - 1), block)
            for i, own in enumerate(u[place].tolist()):
                order = a[place][own]
                up = batch["up"][n, :, block, own][:, :, order] * s[place][own, order, 0]
                assert relative_error(moved["up"][n, :, block, i], up) <= LAW
                gate = batch["gate"][n, :, block, own][:, :, order]
                assert torch.equal(moved["gate"][n, :, block, i], gate)
                router = batch["router"][n, :, block, :, own]
                assert torch.equal(moved["router"][n, :, block, :, i], router)


@given(batches(EXPERTS, channels=1), seeds)
def test_experts_do_the_same_in_another_order(batch: WeightBatch, seed: int) -> None:
    size = batch.networks, 5, batch.spec.size("x")
    tokens = torch.randn(size, dtype=torch.float64, generator=generator(seed))
    moved = apply_blocks(draw(batch, seed)(batch), tokens, eps=0.0)
    assert relative_error(moved, apply_blocks(batch, tokens, eps=0.0)) <= 1e-8


def test_uniform_matrices_have_entries_within_the_bound() -> None:
    spec = BlockSpec(PAPER, D=4, heads=2, D_k=30, D_v=3, D_A=5)
    g = random_element(spec, generator=generator(0), matrices=uniform(10.0))
    assert 9 < g.parts["k"].abs().max().item() <= 10


def test_impossible_condition_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"at least 1, got 0\.5"):
        conditioned(0.5)


def test_elements_of_the_wrong_shape_are_refused() -> None:
    spec = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=5)
    other = BlockSpec(PAPER, D=4, heads=2, D_k=2, D_v=3, D_A=6)
    g = random_element(spec, generator=generator(0))
    with pytest.raises(ShapeError, match=r"has the parts \['a', 'h', 'k', 'r', 'v'\]"):
        GroupElement(spec, {"h": g.parts["h"]})
    with pytest.raises(ShapeError, match=r"part 'k' has shape"):
        GroupElement(spec, {**g.parts, "k": g.parts["v"]})
    with pytest.raises(ShapeError, match="does not act on"):
        g(WeightBatch.random(other, networks=1, generator=generator(0)))
    with pytest.raises(ShapeError, match=r"for n=1 networks of l=1 blocks .* l the same"):
        g(WeightBatch.random(spec, networks=1, blocks=2, generator=generator(0)))
    with pytest.raises(ShapeError, match="n must be 1 or the same"):
        random_element(spec, networks=3, generator=generator(0))(
            WeightBatch.random(spec, networks=2, generator=generator(0))
        )
    with pytest.raises(ShapeError, match="cannot multiply"):
        g @ random_element(other, generator=generator(0))


def test_float32_weights_are_moved_in_float64_and_stay_float32() -> None:
    spec = BlockSpec(PAPER, D=8, heads=2, D_k=4, D_v=3, D_A=5)
    batch = WeightBatch.random(spec, networks=2, generator=generator(0))
    g = random_element(spec, generator=generator(1), matrices=conditioned(1e4))
    got, exact = g(batch), g(batch.to(dtype=torch.float64))
    assert got.dtype == torch.float32
    assert relative_error(got, exact) < torch.finfo(torch.float32).eps


ROTARY_SPEC = BlockSpec(
    ROTARY, D=5, groups=2, heads_per_group=3, D_k=4, D_v=7, D_A=6
)  # all sizes differ
RELU_SPEC = BlockSpec(RELU, D=5, heads=2, D_k=3, D_v=4, D_A=6)


@pytest.mark.parametrize("spec", [ROTARY_SPEC, RELU_SPEC], ids=["rotary", "relu"])
def test_group_laws_hold_for_rotary_and_scaled_axes(spec: BlockSpec) -> None:
    seed = generator(0)
    batch = WeightBatch.random(spec, networks=2, blocks=2, generator=seed, dtype=torch.float64)
    g, h = (random_element(spec, networks=2, blocks=2, generator=seed) for _ in range(2))
    identity = GroupElement.identity(spec, networks=2, blocks=2)
    for left, right in [
        ((g @ h)(batch), g(h(batch))),
        (identity(batch), batch),
        (g.inverse()(g(batch)), batch),
        ((g @ g.inverse())(batch), batch),
    ]:
        assert relative_error(left, right) <= LAW
    assert relative_error(g(batch), batch) > 0.1


def test_a_rotary_element_keeps_the_complex_product_of_each_pair() -> None:
    seed = generator(1)
    batch = WeightBatch.random(
        ROTARY_SPEC, networks=1, blocks=1, generator=seed, dtype=torch.float64
    )
    parts = dict(GroupElement.identity(ROTARY_SPEC).parts)
    parts["k"] = random_element(ROTARY_SPEC, generator=seed).parts["k"]
    moved = GroupElement(ROTARY_SPEC, parts)(batch)

    def products(weights: WeightBatch) -> torch.Tensor:
        q, k = (torch.complex(*weights[name][0, 0, 0].chunk(2, dim=-1)) for name in "QK")
        return torch.einsum("gmxj,gyj->gmxyj", q, k.conj())

    assert (
        relative_error(torch.view_as_real(products(moved)), torch.view_as_real(products(batch)))
        < 1e-12
    )
    # Without the conjugate it is no invariant: the control that the test sees something.
    moved_k = moved.replace({"K": batch["K"]})
    assert (
        relative_error(torch.view_as_real(products(moved_k)), torch.view_as_real(products(batch)))
        > 0.1
    )


def test_scales_of_relu_neurons_are_positive_and_rotary_sizes_even() -> None:
    assert (random_element(RELU_SPEC, generator=generator(2)).parts["s"] > 0).all()
    with pytest.raises(DeclarationError, match="its size is even, not 3"):
        BlockSpec(ROTARY, D=5, groups=2, heads_per_group=1, D_k=3, D_v=7, D_A=6)


def test_layers_refuse_rotary_and_scaled_axes() -> None:
    from transformer_nfn.layers import equivariant_rows

    with pytest.raises(DeclarationError, match="layers do not know"):
        equivariant_rows(ROTARY)


def test_a_block_without_symmetries_has_no_elements() -> None:
    spec = BlockSpec(declare("plain", {"x": free("D")}, {"b": "x"}, {}), D=3)
    with pytest.raises(ShapeError, match="no axis that a group acts on"):
        GroupElement.identity(spec)
