import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, rewrite
from transformer_nfn.identity import apply_element, random_net_element, symmetry_parts
from transformer_nfn.kinship import Fingerprint, distance, fingerprint
from transformer_nfn.kinship.probes import mixed, signs
from transformer_nfn.space import WeightBatch

FAMILIES = (*made.FAMILIES, "gpt2-relu", "zoo-paper", "zoo-residual", "zoo-text")
LIMIT = 1e-4


def net(family: str, folder: Path, dtype: torch.dtype = torch.float32, seed: int = 0) -> Path:
    if family.startswith("zoo"):
        block = "residual" if family == "zoo-residual" else "paper"
        return made.zoo_net(folder / "net.safetensors", block, seed, text=family == "zoo-text")
    change = {"activation_function": "relu"} if family == "gpt2-relu" else {}
    return made.save(made.model(family.partition("-")[0], seed, **change), folder, dtype)


def moved(start: Path, out: Path, parts: list[str] | None = None, seed: int = 0) -> Path:
    if start.suffix:
        out = out.with_suffix(".safetensors")
    with Checkpoint(start) as checkpoint:
        generator = torch.Generator().manual_seed(seed)
        element = random_net_element(checkpoint, generator, parts=parts, condition=100.0)
        return apply_element(checkpoint, element, out)


def changed(start: Path, out: Path, edit: Callable[[WeightBatch], WeightBatch]) -> Path:
    """The second block edited."""
    if start.suffix:
        out = out.with_suffix(".safetensors")
    with Checkpoint(start) as checkpoint:
        batch = edit(checkpoint.block(1))
        return rewrite(checkpoint, checkpoint.pack(1, batch).items(), out)


# ----------------------------------------------------------------------------- some blocks only


@pytest.mark.parametrize("family", [*made.FAMILIES, "zoo-residual"])
def test_some_blocks_have_the_numbers_of_all_and_the_group_changes_nothing(
    family: str, tmp_path: Path
) -> None:
    start = net(family, tmp_path / "a")
    other = moved(start, tmp_path / "b")
    whole = fingerprint(start)
    for choice, number in (("first", 0), ("middle", 1), ("last", 1)):
        some = fingerprint(start, blocks=choice)
        assert list(some.parts) == [f"attention {number}", f"mlp {number}", "tokens"]
        for name in list(some.parts)[:-1]:
            assert torch.equal(some.parts[name], whole.parts[name])
        assert distance(some, fingerprint(other, blocks=choice)).kinship == "copy"
        assert distance(some, whole).kinship == "stranger"  # never compared
    assert len(fingerprint(start, blocks="first,last").parts) == 5


def test_nets_without_skip_connections_are_read_whole(tmp_path: Path) -> None:
    start = net("zoo-paper", tmp_path / "a")
    assert distance(fingerprint(start), fingerprint(start, blocks="first")).largest == 0


@pytest.mark.parametrize("choice", ["", "second", "last,first", "first,first", "all,first"])
def test_what_is_no_choice_of_blocks(choice: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="all, or some of first,middle,last"):
        fingerprint(net("zoo-paper", tmp_path / "a"), blocks=choice)


# ---------------------------------------------------------------------------- what must not count


@pytest.mark.parametrize("family", FAMILIES)
def test_the_whole_group_changes_nothing(family: str, tmp_path: Path) -> None:
    start = net(family, tmp_path / "a")
    first = fingerprint(start)
    for seed in range(2):
        far = distance(first, fingerprint(moved(start, tmp_path / f"{seed}", seed=seed)))
        assert far.largest <= LIMIT, far.parts


@pytest.mark.parametrize("family", ["gpt2", "bert", "qwen2", "zoo-paper", "zoo-residual"])
def test_each_part_of_the_group_changes_nothing(family: str, tmp_path: Path) -> None:
    start = net(family, tmp_path / "a")
    first = fingerprint(start)
    with Checkpoint(start) as checkpoint:
        parts = list(symmetry_parts(checkpoint))
    for part in parts:
        far = distance(first, fingerprint(moved(start, tmp_path / part, [part])))
        assert far.largest <= LIMIT, (part, far.parts)


@pytest.mark.parametrize("family", ["gpt2", "bert", "vit", "llama"])
def test_in_float64_it_is_exact(family: str, tmp_path: Path) -> None:
    start = net(family, tmp_path / "a", torch.float64)
    far = distance(fingerprint(start), fingerprint(moved(start, tmp_path / "b")))
    assert far.largest <= 1e-10
    assert far.kinship == "copy"


def test_shards_and_prefixes_do_not_count(tmp_path: Path) -> None:
    whole = made.save(made.model("llama"), tmp_path / "a")
    shards = made.save(made.model("llama"), tmp_path / "b", max_shard_size="15KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    assert distance(fingerprint(whole), fingerprint(shards)).largest == 0
    bare = made.save(made.model("gpt2").transformer, tmp_path / "bare")
    headed = made.save(made.model("gpt2"), tmp_path / "headed")
    parts = distance(fingerprint(bare), fingerprint(headed)).parts
    alone = [parts.pop("lm_head"), parts.pop("last norm")]
    assert alone == [pytest.approx(2), pytest.approx(2)]  # only one of them has it
    assert max(parts.values()) == 0


@pytest.mark.parametrize("family", ["gpt2", "bert", "vit", "llama"])
def test_the_dtype_counts_as_rounding_only(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small, so that tensors have several slices, other ones in each dtype.
    monkeypatch.setattr("transformer_nfn.kinship.blockfunction.SLICE", 500)
    monkeypatch.setattr("transformer_nfn.kinship.outsidefunction.NUMBERS", 100)
    first = fingerprint(net(family, tmp_path / "a"))
    for dtype, limit in ((torch.float64, 1e-5), (torch.float16, 0.005), (torch.bfloat16, 0.03)):
        far = distance(first, fingerprint(net(family, tmp_path / f"{dtype}", dtype)))
        assert far.largest <= limit, (dtype, far.parts)
        assert far.kinship == "copy"


def test_threads_are_put_back(tmp_path: Path) -> None:
    start = net("gpt2", tmp_path)
    before = torch.get_num_threads()
    fingerprint(start)
    assert torch.get_num_threads() == before


# -------------------------------------------------------------------------------- what must count


def swap_values(batch: WeightBatch) -> WeightBatch:
    """V and O of two heads exchanged, Q and K not."""
    swap = torch.arange(batch["V"].shape[3])
    swap[:2] = torch.tensor([1, 0])
    return batch.replace({name: batch[name][:, :, :, swap] for name in ("V", "O")})


def one_neuron(batch: WeightBatch) -> WeightBatch:
    name = "gate" if "gate" in batch else "A"
    weight = batch[name].clone()
    weight[0, 0, 0, :, 3] *= 1.01
    return batch.replace({name: weight})


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    ("edit", "part"), [(swap_values, "attention 1"), (one_neuron, "mlp 1")], ids=["vo", "neuron"]
)
def test_near_misses_are_seen_where_they_are(
    family: str,
    edit: Callable[[WeightBatch], WeightBatch],
    part: str,
    tmp_path: Path,
) -> None:
    start = net(family, tmp_path / "a")
    parts = dict(
        distance(fingerprint(start), fingerprint(changed(start, tmp_path / "b", edit))).parts
    )
    assert parts[part] > LIMIT
    # Without skip connections all that follows is probed with what the changed half writes.
    after = {"mlp 1", "classifier"} if family in ("zoo-paper", "zoo-text") else set()
    assert all(not far for name, far in parts.items() if name not in {part} | after)


def test_an_unchanged_edit_is_not_seen(tmp_path: Path) -> None:
    start = net("gpt2", tmp_path / "a")
    same = changed(start, tmp_path / "b", lambda batch: batch)
    assert distance(fingerprint(start), fingerprint(same)).largest == 0


def test_another_rope_theta_is_another_attention(tmp_path: Path) -> None:
    start = net("llama", tmp_path / "a")
    with Checkpoint(start) as checkpoint:
        out = rewrite(checkpoint, [], tmp_path / "b")
    config = json.loads((out / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] *= 1.2
    (out / "config.json").write_text(json.dumps(config))
    parts = distance(fingerprint(start), fingerprint(out)).parts
    assert all((far > LIMIT) == name.startswith("attention") for name, far in parts.items())


@pytest.mark.parametrize(
    ("family", "name", "part"),
    [
        ("gpt2", "transformer.wpe.weight", "embedding"),
        ("bert", "cls.predictions.transform.dense.bias", "cls.predictions.transform.dense"),
        ("bert", "cls.predictions.transform.LayerNorm.weight", "others"),
        ("vit", "vit.embeddings.cls_token", "embedding"),
        ("vit", "classifier.weight", "classifier"),
        ("llama", "model.norm.weight", "lm_head"),
        ("zoo-paper", "classifier.weight2", "classifier"),
    ],
)
def test_tensors_outside_the_blocks_count(
    family: str, name: str, part: str, tmp_path: Path
) -> None:
    start = net(family, tmp_path / "a")
    with Checkpoint(start) as checkpoint:
        value = checkpoint.files.read(name).clone()
        value[-1] *= 1.1
        suffix = start.suffix
        out = rewrite(checkpoint, [(name, value)], (tmp_path / "b").with_suffix(suffix))
    parts = distance(fingerprint(start), fingerprint(out)).parts
    assert parts[part] > LIMIT


def test_every_block_tensor_counts(tmp_path: Path) -> None:
    """All but the key bias, which nothing depends on."""
    start = net("gpt2", tmp_path / "a")
    first = fingerprint(start)
    with Checkpoint(start) as checkpoint:
        names = [n for n in checkpoint.files if n.startswith(checkpoint.block_name(0))]
        for number, name in enumerate(names):
            value = checkpoint.files.read(name).clone()
            value[..., :24] *= 1.05
            out = rewrite(checkpoint, [(name, value)], tmp_path / f"{number}")
            assert distance(first, fingerprint(out)).largest > LIMIT, name
        bias = "transformer.h.0.attn.c_attn.bias"
        value = checkpoint.files.read(bias).clone()
        value[24:48] += 1
        out = rewrite(checkpoint, [(bias, value)], tmp_path / "keys")
    assert distance(first, fingerprint(out)).largest <= LIMIT


# ---------------------------------------------------------------------------------- form, errors


def test_it_survives_json(tmp_path: Path) -> None:
    first = fingerprint(net("bert", tmp_path))
    again = Fingerprint.from_json(json.dumps(first.to_json()))
    assert (again.path, again.shape, again.dtype) == (first.path, first.shape, first.dtype)
    assert distance(first, again).largest == 0


def test_progress_counts_blocks(tmp_path: Path) -> None:
    seen: list[int] = []
    fingerprint(net("gpt2", tmp_path), seen.append)
    assert seen == [1, 2]


def test_weights_that_are_not_finite_are_named(tmp_path: Path) -> None:
    start = net("gpt2", tmp_path / "a")
    name = "transformer.h.1.mlp.c_fc.weight"
    with Checkpoint(start) as checkpoint:
        value = checkpoint.files.read(name).clone()
        value[3, 3] = torch.nan
        out = rewrite(checkpoint, [(name, value)], tmp_path / "b")
    with pytest.raises(CheckpointError, match="mlp 1 has weights that are not finite"):
        fingerprint(out)


def test_slices_give_what_the_whole_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for family in ("gpt2", "bert"):
        start = net(family, tmp_path / family)
        whole = fingerprint(start)
        monkeypatch.setattr("transformer_nfn.kinship.blockfunction.SLICE", 500)
        far = distance(whole, fingerprint(start))
        monkeypatch.undo()
        assert far.largest <= 1e-5


def test_signs_and_rows_are_the_same_everywhere() -> None:
    assert signs("x", 3, 5).tolist() == signs("x", 3, 5).tolist()
    assert signs("x", 64).tolist() != signs("y", 64).tolist()
    assert abs(signs("x", 10_000).mean().item()) < 0.05
    rows = torch.randn(60, 500, dtype=torch.float64)
    sums = mixed(rows, 16)
    assert sums.shape == (16, 500)
    sizes = [each.square().mean().item() for each in (sums, rows)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.2)


def test_no_few_words_decide_what_tokens_are(tmp_path: Path) -> None:
    """16 of 5,000 words turned once hid a copy: they were all that probes were made of."""
    sizes = {"vocab_size": 5000, "n_embd": 30, "n_inner": 64}
    start = made.save(made.model("gpt2", 0, **sizes), tmp_path / "a")
    print_before = fingerprint(start)
    tensors = load_file(start / "model.safetensors")
    (words,) = (name for name in tensors if name.endswith("wte.weight"))
    for seed in range(3):
        rows = torch.randperm(5000, generator=torch.Generator().manual_seed(seed))[:16]
        turned = dict(tensors)
        turned[words] = tensors[words].clone()
        turned[words][rows] = -tensors[words][rows].flip(1)
        save_file(turned, start / "model.safetensors", {"format": "pt"})
        far = distance(print_before, fingerprint(start))
        assert far.kinship == "related"
        assert far.median < 0.2


def test_a_vocabulary_may_be_extended(tmp_path: Path) -> None:
    model = made.model("gpt2", 0, vocab_size=600)
    one = fingerprint(made.save(model, tmp_path / "a"))
    model.resize_token_embeddings(640)
    two = fingerprint(made.save(model, tmp_path / "b"))
    assert one.shape == two.shape
    assert distance(one, two).kinship == "related"
