"""Every part of every family's group, on the models of `transformers`; and what is no symmetry."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, rewrite
from transformer_nfn.group import GroupElement, conditioned, random_element, relative_error
from transformer_nfn.identity import (
    ElementError,
    NetElement,
    apply_element,
    random_net_element,
    run,
    same,
    symmetry_parts,
)
from transformer_nfn.space import sine_positions

RESIDUAL = ("heads", "qk", "vo", "neurons", "key_bias", "value_bias", "norms", "ones", "basis")
ROTARY = ("heads", "qk", "vo", "neurons", "scales", "norms", "basis")
PARTS = {
    "gpt2": RESIDUAL,
    "bert": tuple(part for part in RESIDUAL if part != "norms"),
    "vit": RESIDUAL,
    "llama": ROTARY,
    "qwen2": ROTARY,
}
CASES = [(family, part) for family, parts in PARTS.items() for part in (*parts, "all")]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, torch.dtype], Path]:
    home = tmp_path_factory.mktemp("checkpoints")
    return {
        (family, dtype): made.save(made.model(family), home / f"{family}-{dtype}", dtype)
        for family in made.FAMILIES
        for dtype in (torch.float32, torch.float64)
    }


def moved(folder: Path, out: Path, parts: list[str] | None, seed: int = 0) -> Path:
    with Checkpoint(folder) as checkpoint:
        generator = torch.Generator().manual_seed(seed)
        return apply_element(
            checkpoint, random_net_element(checkpoint, generator, parts=parts), out
        )


def said(folder: Path, family: str, dtype: torch.dtype) -> Tensor:
    return made.logits(made.load(folder, dtype), family)


@pytest.mark.parametrize("family", made.FAMILIES)
def test_the_parts_of_each_family(
    family: str, checkpoints: dict[tuple[str, torch.dtype], Path]
) -> None:
    with Checkpoint(checkpoints[family, torch.float32]) as checkpoint:
        assert tuple(symmetry_parts(checkpoint)) == PARTS[family]


#: Each part in float64; in float32 all together, `benchmarks/same/symmetries.py` has each alone.
DTYPED = [
    *((family, part, torch.float64, 1e-10) for family, part in CASES),
    *((family, "all", torch.float32, 1e-4) for family in PARTS),
]
SAID: dict[tuple[str, torch.dtype], Tensor] = {}


@pytest.mark.parametrize(("family", "part", "dtype", "limit"), DTYPED)
def test_logits_stay(
    family: str,
    part: str,
    dtype: torch.dtype,
    limit: float,
    checkpoints: dict[tuple[str, torch.dtype], Path],
    tmp_path: Path,
    exact_norms: None,
) -> None:
    start = checkpoints[family, dtype]
    out = moved(start, tmp_path / "b", None if part == "all" else [part])
    with Checkpoint(start) as one, Checkpoint(out) as two:
        assert any(not torch.equal(one.files.read(n), two.files.read(n)) for n in one.files)
    if (family, dtype) not in SAID:
        SAID[family, dtype] = said(start, family, dtype)
    assert relative_error(said(out, family, dtype), SAID[family, dtype]) < limit


@pytest.mark.parametrize("family", ["gpt2", "bert", "vit"])
def test_the_paper_s_pi_O_in_one_block_is_no_symmetry_here(
    family: str, checkpoints: dict[tuple[str, torch.dtype], Path], tmp_path: Path
) -> None:
    start = checkpoints[family, torch.float64]
    with Checkpoint(start) as checkpoint:
        order = torch.randperm(24, generator=torch.Generator().manual_seed(0))
        batch = checkpoint.block(0)
        wrong = batch.replace(
            {
                "O": batch["O"][..., order],
                "bO": batch["bO"][..., order],
                "A": batch["A"][:, :, :, order],
            }
        )
        out = rewrite(checkpoint, checkpoint.pack(0, wrong).items(), tmp_path / "b")
    assert (
        relative_error(said(out, family, torch.float64), said(start, family, torch.float64)) > 1e-3
    )


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_GL_under_rope_is_no_symmetry(
    family: str, checkpoints: dict[tuple[str, torch.dtype], Path], tmp_path: Path, exact_norms: None
) -> None:
    start = checkpoints[family, torch.float64]
    with Checkpoint(start) as checkpoint:
        M = conditioned(4.0)((2,), 4, torch.Generator().manual_seed(0))  # a matrix for each group
        batch = checkpoint.block(1)
        wrong = batch.replace(
            {
                "Q": torch.einsum("nclgmzk,gkj->nclgmzj", batch["Q"], M),
                "K": torch.einsum("nclgzk,gjk->nclgzj", batch["K"], torch.linalg.inv(M)),
            }
        )
        out = rewrite(checkpoint, checkpoint.pack(1, wrong).items(), tmp_path / "b")
    assert (
        relative_error(said(out, family, torch.float64), said(start, family, torch.float64)) > 1e-3
    )


def test_a_rotation_that_moves_the_ones_is_no_symmetry_under_layer_norm(
    checkpoints: dict[tuple[str, torch.dtype], Path], tmp_path: Path
) -> None:
    start = checkpoints["gpt2", torch.float64]
    with Checkpoint(start) as checkpoint:
        generator = torch.Generator().manual_seed(0)
        element = random_net_element(checkpoint, generator, parts=["basis"])
        wrong = replace(element, bases={0: conditioned(1.0)((), 24, generator)})
        with pytest.raises(ElementError, match="moves the vector of ones"):
            apply_element(checkpoint, wrong, tmp_path / "b")
        assert not (tmp_path / "b").exists()
        out = made.unchecked(checkpoint, wrong, tmp_path / "b")
    assert (
        relative_error(said(out, "gpt2", torch.float64), said(start, "gpt2", torch.float64)) > 1e-3
    )


def test_relu_neurons_have_positive_scales_and_gelu_ones_none(tmp_path: Path) -> None:
    net = made.model("gpt2", activation_function="relu")
    start = made.save(net, tmp_path / "a", torch.float64)
    with Checkpoint(start) as checkpoint:
        assert "scales" in symmetry_parts(checkpoint)
    out = moved(start, tmp_path / "b", ["scales"])
    assert (
        relative_error(said(out, "gpt2", torch.float64), said(start, "gpt2", torch.float64)) < 1e-10
    )
    gelu = made.save(made.model("gpt2"), tmp_path / "c", torch.float64)
    with (
        Checkpoint(gelu) as checkpoint,
        pytest.raises(CheckpointError, match="scales: no symmetry of"),
    ):
        random_net_element(checkpoint, torch.Generator(), parts=["scales"])


@pytest.mark.parametrize(
    ("block", "text"), [("paper", False), ("residual", False), ("paper", True)]
)
def test_zoo_nets(block: str, text: bool, tmp_path: Path) -> None:
    start = made.zoo_net(tmp_path / "a.safetensors", block, text=text)
    patches = torch.randn(3, 9, 24 if text else 20, generator=torch.Generator().manual_seed(0))
    with Checkpoint(start) as checkpoint:
        parts = symmetry_parts(checkpoint)
        assert ("basis" in parts) == (block == "paper")
        wanted = run(checkpoint, patches)["logits"]
        for part in (*parts, None):
            generator = torch.Generator().manual_seed(0)
            element = random_net_element(
                checkpoint, generator, parts=None if part is None else [part]
            )
            out = apply_element(checkpoint, element, tmp_path / f"{part}.safetensors")
            with Checkpoint(out) as other:
                assert relative_error(run(other, patches)["logits"], wanted) < 1e-4


def test_a_zoo_net_runs_as_the_zoo_runs_it(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    from transformer_nfn.space import apply_net
    from transformer_nfn.zoo.dataset import NetShape

    for block in ("paper", "residual"):
        path = made.zoo_net(tmp_path / f"{block}.safetensors", block)
        shape = NetShape(
            block=block, tokens=9, inputs=20, D=24, heads=3, D_A=40, hidden=12, classes=5
        )
        tensors = load_file(path)
        flat = torch.cat([tensors[name].flatten() for name in shape.stored])[None].double()
        patches = torch.randn(4, 9, 20, generator=torch.Generator().manual_seed(1)).double()
        wanted = apply_net(shape.net_batch(flat), patches)[0]
        with Checkpoint(path) as checkpoint:
            assert relative_error(run(checkpoint, patches)["logits"], wanted) < 1e-10


def test_shards_move_too(tmp_path: Path) -> None:
    net = made.model("llama", tie_word_embeddings=True)
    start = made.save(net, tmp_path / "a", max_shard_size="15KB")
    out = moved(start, tmp_path / "b", None)
    assert len(list(out.glob("*.safetensors"))) > 1
    said_before, said_after = (said(folder, "llama", torch.float32) for folder in (start, out))
    assert relative_error(said_after, said_before) < 1e-4


def test_hidden_states_hold_their_basis(tmp_path: Path) -> None:
    start = made.save(made.model("bert", cls="BertModel"), tmp_path / "a", torch.float64)
    with Checkpoint(start) as checkpoint:
        assert "basis" not in symmetry_parts(checkpoint)
    out = moved(start, tmp_path / "b", None)
    assert (
        relative_error(said(out, "bert", torch.float64), said(start, "bert", torch.float64)) < 1e-10
    )


def test_a_shift_that_queries_without_bias_hold(tmp_path: Path) -> None:
    start = made.save(made.model("vit", qkv_bias=False), tmp_path / "a", torch.float64)
    before = said(start, "vit", torch.float64)
    with Checkpoint(start) as checkpoint:
        parts = [[part] for part in symmetry_parts(checkpoint)]
    for number, some in enumerate([*parts, None]):
        out = moved(start, tmp_path / f"b{number}", some)
        assert relative_error(said(out, "vit", torch.float64), before) < 1e-10, some


def test_permutations_change_no_bits_of_a_number(
    checkpoints: dict[tuple[str, torch.dtype], Path], tmp_path: Path
) -> None:
    start = checkpoints["gpt2", torch.float32]
    out = moved(start, tmp_path / "b", ["heads", "neurons"])
    with Checkpoint(start) as one, Checkpoint(out) as two:
        for name in one.files:
            a, b = (
                checkpoint.files.read(name).flatten().sort().values for checkpoint in (one, two)
            )
            assert torch.equal(a, b), name


def test_an_element_for_another_network_is_refused(
    checkpoints: dict[tuple[str, torch.dtype], Path], tmp_path: Path
) -> None:
    with Checkpoint(checkpoints["gpt2", torch.float32]) as checkpoint:
        wrong = NetElement.identity(checkpoint.spec, blocks=3)
        with pytest.raises(CheckpointError, match="for 3 blocks"):
            apply_element(checkpoint, wrong, tmp_path / "b")
        one = random_element(checkpoint.spec, generator=torch.Generator().manual_seed(0))
        assert isinstance(one, GroupElement)


def test_what_is_laid_over_a_small_head_is_small_and_over_a_norm_that_is_almost_0_too(
    tmp_path: Path,
) -> None:
    net = made.model("vit")
    with torch.no_grad():
        net.classifier.weight.mul_(1e-3)
        net.vit.layers[0].layernorm_before.weight[3] = 3e-6
    folder = made.save(net, tmp_path / "small", torch.float16)
    out = moved(folder, tmp_path / "moved", ["ones"])  # beyond float16 if it were as large as usual
    with Checkpoint(folder) as one, Checkpoint(out) as two:
        assert same(one, two, seed=0).answer.value == "equivalent"
        assert not torch.equal(*(c.files.read("classifier.weight") for c in (one, two)))


def test_rows_on_a_coarse_grid_are_shifted_by_whole_digits(tmp_path: Path) -> None:
    """Sines of 16 bits plus any constant are all rounded alike: Whisper's was not decided so."""
    net = made.model("gpt2", 0, n_positions=600, n_embd=60, n_head=3)
    with torch.no_grad():
        net.transformer.wpe.weight.copy_(sine_positions(600, 60).half().float())
    start = made.save(net, tmp_path / "a")
    with Checkpoint(start) as ours:
        element = random_net_element(ours, torch.Generator().manual_seed(1), parts=["ones"])
        with Checkpoint(apply_element(ours, element, tmp_path / "b")) as theirs:
            name = ours.name("wpe.weight")
            rows = ours.files.read(name).double()
            shift = theirs.files.read(name).double() - rows
            large = rows.abs() > 0.1
            for each, some in zip(shift, large, strict=True):
                assert len(set(each[some].tolist())) == 1  # and nothing was rounded
            assert shift.abs().mean() > 0.1


def test_a_last_norm_of_zeros_leaves_room_for_nothing(tmp_path: Path) -> None:
    net = made.model("gpt2", 0)
    with torch.no_grad():
        net.transformer.ln_f.weight.zero_()
    with Checkpoint(made.save(net, tmp_path / "a")) as checkpoint:
        element = random_net_element(checkpoint, torch.Generator().manual_seed(0), parts=["ones"])
        moved = apply_element(checkpoint, element, tmp_path / "b")
    assert all(
        tensor.isfinite().all() for tensor in load_file(moved / "model.safetensors").values()
    )
