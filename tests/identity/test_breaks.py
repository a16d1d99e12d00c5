"""Pairs that passed for the same function once and were not; each as it was found."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from benchmarks.material.families import inputs, load, make, outputs
from benchmarks.same.families import moved, relative
from tests.identity.test_loaders import configured
from tests.identity.test_strangers import decided, with_tensors
from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.identity import (
    Answer,
    ElementError,
    apply_element,
    random_net_element,
    same,
    save_certificate,
    verify,
)


def outputs_apart(one: Path, two: Path, dtype: torch.dtype = torch.float64) -> float:
    """How far `transformers` has two folders apart."""
    given = inputs(one)
    before, after = (outputs(load(path, dtype), given).double() for path in (one, two))
    return relative(after, before)


def without(folder: Path, out: Path, *names: str) -> Path:
    """A copy that lacks some tensors."""
    shutil.copytree(folder, out)
    file = out / "model.safetensors"
    left = {name: t for name, t in load_file(file).items() if not name.endswith(names)}
    save_file(left, file, {"format": "pt"})
    return out


# -------------------------------------------------------------------------------------- experts


def tied_experts(tmp_path: Path) -> tuple[Path, Path]:
    """A network whose first router has no favourite, and a copy with its experts in turn."""
    folder = make("mixtral", tmp_path / "a", dtype=torch.float32)
    tensors = load_file(folder / "model.safetensors")
    stem = "model.layers.0.block_sparse_moe."
    router = torch.zeros_like(tensors[f"{stem}gate.weight"])
    one = with_tensors(folder, tmp_path / "one", **{f"{stem}gate.weight": router})
    count = len(router)
    name = f"{stem}experts.{{}}.{{}}.weight"
    turned = {
        name.format((i + 1) % count, part): tensors[name.format(i, part)]
        for i in range(count)
        for part in ("w1", "w2", "w3")
    }
    return one, with_tensors(one, tmp_path / "two", **turned)


def test_experts_that_tie_are_chosen_by_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tied_experts(tmp_path)
    assert outputs_apart(one, two) > 0.1
    # As in a network of many blocks, of which one is tied.
    monkeypatch.setattr("transformer_nfn.identity.running.confirmation.TURNED", 0.6)
    assert decided(one, two) is Answer.UNDECIDED
    with Checkpoint(one) as checkpoint:
        element = random_net_element(
            checkpoint, torch.Generator().manual_seed(0), parts=("experts",)
        )
        with pytest.raises(ElementError, match="must keep their order"):
            apply_element(checkpoint, element, tmp_path / "out")


def tied_for_few_words(tmp_path: Path, tie: str) -> tuple[Path, Path]:
    """A network of which two experts are equally good for 5 of 60 words, and one with both in turn.

    Args:
        tmp_path: Where to.
        tie: "rows", whose scores are 0; "places", where they read what those words have not;
            "digits" that float32 has not, of five words or of "one".
    """
    folder = make(
        "mixtral", tmp_path / "a", dtype=torch.float32, num_experts_per_tok=1, num_hidden_layers=1
    )
    tensors = load_file(folder / "model.safetensors")
    words, stem = tensors["model.embed_tokens.weight"], "model.layers.0.block_sparse_moe."
    words[:, 0], words[:5, 0], words[:5, 2:4] = 4.0, -4.0, 0.0
    tensors["model.layers.0.self_attn.o_proj.weight"][[0, 2, 3]] = 0
    tensors["model.layers.0.post_attention_layernorm.weight"][0] = 1
    router = tensors[f"{stem}gate.weight"]
    router[:, 0], router[:2] = 3.0, 0.0
    if tie == "places":
        router[0, 2], router[1, 3] = 0.5, 0.5
    if tie in ("digits", "one"):
        router[1, 1] = 1e-9
    if tie == "one":
        words[1:5, 0] = 4.0
    one = with_tensors(folder, tmp_path / "one", **tensors)
    turned = {f"{stem}gate.weight": router[[1, 0, *range(2, len(router))]]}
    for part in ("w1", "w2", "w3"):
        names = [f"{stem}experts.{number}.{part}.weight" for number in (0, 1)]
        turned |= {names[0]: tensors[names[1]], names[1]: tensors[names[0]]}
    return one, with_tensors(one, tmp_path / "two", **turned)


@pytest.mark.parametrize("tie", ["rows", "places", "digits", "one"])
def test_experts_that_tie_for_few_words_are_not_decided(tie: str, tmp_path: Path) -> None:
    one, two = tied_for_few_words(tmp_path, tie)
    assert outputs_apart(one, two, torch.float32) > 0.1
    assert decided(one, two) is Answer.UNDECIDED


@pytest.mark.parametrize("tie", ["rows", "places"])
def test_experts_that_tie_for_few_words_are_not_reordered(tie: str, tmp_path: Path) -> None:
    one, _ = tied_for_few_words(tmp_path, tie)
    with Checkpoint(one) as checkpoint:
        element = random_net_element(
            checkpoint, torch.Generator().manual_seed(3), parts=("experts",)
        )
        with pytest.raises(ElementError, match="keep their order"):
            apply_element(checkpoint, element, tmp_path / "out")
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [2.0**19, 2.0**30])
def test_what_all_scores_share_and_digits_are_lost_beside_is_not_decided(
    size: float, tmp_path: Path
) -> None:
    """No softmax sees it, but its float32 does."""
    dtype = torch.float64 if size > 2**24 else torch.float32
    folder = make(
        "mixtral", tmp_path / "a", dtype=dtype, num_experts_per_tok=1, num_hidden_layers=1
    )
    name = "model.layers.0.block_sparse_moe.gate.weight"
    router = load_file(folder / "model.safetensors")[name]
    router[:, 3] = 0
    one = with_tensors(folder, tmp_path / "one", **{name: router.clone()})
    router[:, 3] = size
    two = with_tensors(folder, tmp_path / "two", **{name: router})
    assert outputs_apart(one, two, torch.float32) > 0.01
    assert decided(one, two) is Answer.UNDECIDED


def test_a_certificate_that_reorders_experts_which_tie_does_not_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tied_for_few_words(tmp_path, "places")
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        confirming = "transformer_nfn.identity.running.confirmation.ties"
        with monkeypatch.context() as blind:  # a liar's `same`
            blind.setattr(confirming, lambda *_: False)
            element = same(ours, theirs, seed=0).element
        assert element is not None
        save_certificate(element, ours, theirs, tmp_path / "c.safetensors")
        assert verify(tmp_path / "c.safetensors", ours, theirs, seed=0).holds is False


# ------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("size", [1e16, 1e4])
def test_a_key_bias_beside_which_the_keys_are_lost_is_not_decided(
    size: float, tmp_path: Path
) -> None:
    folder = make("bert", tmp_path / "a", dtype=torch.float32, num_hidden_layers=1)
    names = ["bert.encoder.layer.0.attention.self.key.bias"]
    generator = torch.Generator().manual_seed(0)
    tensors = load_file(folder / "model.safetensors")
    large = {n: size * torch.randn(tensors[n].shape, generator=generator) for n in names}
    other = with_tensors(folder, tmp_path / "b", **large)
    dtype = torch.float64 if size > 1e8 else torch.float32
    assert outputs_apart(folder, other, dtype) > 1e-5
    with Checkpoint(folder) as ours, Checkpoint(other) as theirs:
        found = same(ours, theirs, seed=0, search=False)
    assert found.answer is Answer.UNDECIDED
    assert "key.weight: its bias is" in found.reason
    assert decided(other, folder) is Answer.UNDECIDED
    small = with_tensors(folder, tmp_path / "c", **{n: t / size for n, t in large.items()})
    assert decided(folder, small) is Answer.EQUIVALENT


@pytest.mark.parametrize(("dtype", "power"), [(torch.float32, 126), (torch.float16, 13)])
def test_what_overflows_when_it_is_run_is_not_decided(
    dtype: torch.dtype, power: int, tmp_path: Path
) -> None:
    folder = make("llama", tmp_path / "a", dtype=dtype, num_hidden_layers=1)
    tensors = load_file(folder / "model.safetensors")
    scaled = {
        name: tensor * 2.0 ** (power if "up_proj" in name else -power)
        for name, tensor in tensors.items()
        if "up_proj" in name or "down_proj" in name
    }
    other = with_tensors(folder, tmp_path / "b", **scaled)
    given = inputs(other)
    assert not outputs(load(other, dtype), given).isfinite().all()
    assert decided(folder, other) is Answer.UNDECIDED
    assert decided(other, folder) is Answer.UNDECIDED


def test_one_activation_is_not_another_that_is_near(tmp_path: Path) -> None:
    folder = configured(make("bert", tmp_path / "a"), hidden_act="gelu_new")
    other = configured(Path(shutil.copytree(folder, tmp_path / "b")), hidden_act="gelu_fast")
    assert 1e-14 < outputs_apart(folder, other) < 1e-10
    assert decided(folder, other) is Answer.UNDECIDED


# ------------------------------------------------------------------------------------ settings


def test_a_part_that_turns_is_read_beside_the_tables_of_positions(tmp_path: Path) -> None:
    tables = {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0},
        "sliding_attention": {"rope_type": "linear", "factor": 1.0, "rope_theta": 10000.0},
    }
    folder = make("gemma3_text", tmp_path / "a", dtype=torch.float32)
    configured(folder, rope_parameters=tables, rope_scaling=None)
    other = Path(shutil.copytree(folder, tmp_path / "b"))
    configured(other, partial_rotary_factor=0.97)
    assert outputs_apart(folder, other) > 1e-3
    assert decided(folder, other) is Answer.UNDECIDED


def test_falcon_that_shows_its_attention_is_not_read(tmp_path: Path) -> None:
    folder = make("falcon", tmp_path / "a", dtype=torch.float32)
    other = configured(Path(shutil.copytree(folder, tmp_path / "b")), output_attentions=True)
    assert outputs_apart(folder, other) > 0.1
    with pytest.raises(CheckpointError, match="output_attentions"):
        Checkpoint(other)


@pytest.mark.parametrize(
    ("name", "has", "says"),
    [
        ("gpt2", "GPT2ForSequenceClassification", "GPT2ForTokenClassification"),
        ("bert", "BertForMaskedLM", "BertForQuestionAnswering"),
        ("llama", "LlamaForCausalLM", "LlamaForSequenceClassification"),
        ("vit", "ViTForImageClassification", "ViTForMaskedImageModeling"),
        ("clip_vision_model", "CLIPVisionModel", "CLIPVisionModelWithProjection"),
        ("dinov2", "Dinov2Model", "Dinov2ForImageClassification"),
    ],
)
def test_another_class_reads_other_heads(name: str, has: str, says: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path / "a", dtype=torch.float32, model=has)
    other = Path(shutil.copytree(folder, tmp_path / "b"))
    configured(other, architectures=[says])
    if says.endswith("ForMaskedImageModeling"):
        with pytest.raises(CheckpointError, match="is not read"):
            Checkpoint(other)
        return
    assert decided(folder, other) is Answer.UNDECIDED
    if has.endswith("Model"):
        return  # it has no head, so it is judged by its hidden states
    third = moved(other, tmp_path / "c", 1)
    assert decided(other, third) is Answer.UNDECIDED, "its head is made up"


def test_a_class_of_the_same_heads_gives_other_outputs(tmp_path: Path) -> None:
    name = "LlamaForSequenceClassification"
    folder = make("llama", tmp_path / "a", dtype=torch.float32, model=name)
    other = Path(shutil.copytree(folder, tmp_path / "b"))
    configured(other, architectures=["LlamaForTokenClassification"])
    assert decided(folder, other) is Answer.UNDECIDED


# ------------------------------------------------------------------------------- what is missing

_HEAD, _BIASES = ("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder"), ("lm_head.bias",)


def test_a_bias_that_a_loader_draws_must_be_there(tmp_path: Path) -> None:
    folder = make("siglip_vision_model", tmp_path / "a", dtype=torch.float32)
    other = without(folder, tmp_path / "b", "layers.0.mlp.fc1.bias")
    with pytest.raises(CheckpointError, match=r"mlp\.fc1\.bias"):
        Checkpoint(other)


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("bert", "token_type_embeddings.weight"),
        ("gpt2", "wpe.weight"),
        ("vit", "cls_token"),
    ],
)
def test_what_a_loader_makes_up_is_not_decided(name: str, gone: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path / "a", dtype=torch.float32)
    one = without(folder, tmp_path / "one", gone)
    two = Path(shutil.copytree(one, tmp_path / "two"))
    file = two / "model.safetensors"
    save_file(load_file(file), file, {"format": "pt", "written": "again"})
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        found = same(ours, theirs, seed=0, search=False)
    assert found.answer is Answer.UNDECIDED
    assert "makes it up" in found.reason


def test_a_file_without_any_head_is_one_of_hidden_states(tmp_path: Path) -> None:
    folder = make("mpnet", tmp_path / "a", dtype=torch.float32)
    assert json.loads((folder / "config.json").read_text())["architectures"] == ["MPNetForMaskedLM"]
    headless = without(
        folder, tmp_path / "b", *(f"{n}.{p}" for n in _HEAD for p in ("weight", "bias")), *_BIASES
    )
    with Checkpoint(headless) as checkpoint:
        assert checkpoint.made_up is None
        assert not checkpoint.unknown
        assert checkpoint.gives_hidden_states
    assert decided(headless, moved(headless, tmp_path / "c", 1)) is Answer.EQUIVALENT


@pytest.mark.parametrize("name", ["distilbert", "electra", "modernbert"])
def test_a_decoder_without_its_bias_is_refused_in_a_line(name: str, tmp_path: Path) -> None:
    folder = make(name, tmp_path / "a", dtype=torch.float32)
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.predictor is not None
        bias = checkpoint.predictor.bias
    with pytest.raises(CheckpointError, match="a loader would make it up"):
        Checkpoint(without(folder, tmp_path / "b", bias))


# --------------------------------------------------------------------------------------- dtypes


def test_a_dtype_of_the_index_is_refused(tmp_path: Path) -> None:
    folder = make("bert", tmp_path / "a", dtype=torch.float32)
    shard = "model-00001-of-00001.safetensors"
    names = list(load_file(folder / "model.safetensors"))
    (folder / "model.safetensors").rename(folder / shard)
    index = {"metadata": {"dtype": "bfloat16"}, "weight_map": dict.fromkeys(names, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="says a dtype"):
        Checkpoint(folder)


@pytest.mark.parametrize("said", [{"": "bfloat16"}, "bfloat16"])
def test_a_dtype_that_only_one_config_says_is_not_decided(said: object, tmp_path: Path) -> None:
    folder = configured(make("bert", tmp_path / "a", dtype=torch.float32), dtype="float32")
    other = configured(Path(shutil.copytree(folder, tmp_path / "b")), dtype=said)
    assert decided(folder, other) is Answer.UNDECIDED


def test_one_coarse_tensor_does_not_hide_that_others_are_rounded(tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "a", dtype=torch.float32)
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors = load_file(folder / "model.safetensors")
    one = with_tensors(folder, tmp_path / "one", **{name: tensors[name].bfloat16()})
    configured(one, dtype="float32")
    other = configured(Path(shutil.copytree(one, tmp_path / "two")), dtype="bfloat16")
    assert decided(one, other) is Answer.UNDECIDED


def test_an_adapter_beside_a_network_is_refused(tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "a", dtype=torch.float32)
    (folder / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="an adapter_config"):
        Checkpoint(folder)


# ------------------------------------------------------------------------------------ size


def test_many_heads_are_compared_in_time_or_refused(tmp_path: Path) -> None:
    for heads, refused in ((300, False), (1500, True)):
        config = transformers.BertConfig(
            vocab_size=20, hidden_size=heads, num_attention_heads=heads, num_hidden_layers=1,
            intermediate_size=4, max_position_embeddings=8,
        )  # fmt: skip
        folder = tmp_path / str(heads)
        transformers.BertModel(config, add_pooling_layer=False).save_pretrained(folder)
        if refused:
            with pytest.raises(CheckpointError, match="1500 heads"):
                Checkpoint(folder)
            continue
        other = moved(folder, tmp_path / "moved", 1)
        assert decided(folder, other) in (Answer.EQUIVALENT, Answer.UNDECIDED)


def test_verify_says_no_to_a_key_bias_that_drowns_the_keys(tmp_path: Path) -> None:
    folder = make("bert", tmp_path / "a", dtype=torch.float32, num_hidden_layers=1)
    other = moved(folder, tmp_path / "b", 1)
    name = "bert.encoder.layer.0.attention.self.key.bias"
    large = 1e16 * load_file(other / "model.safetensors")[name]
    third = with_tensors(other, tmp_path / "c", **{name: large})
    with Checkpoint(folder) as ours, Checkpoint(other) as theirs, Checkpoint(third) as drowned:
        element = same(ours, theirs, seed=0).element
        assert element is not None
        save_certificate(element, ours, drowned, tmp_path / "c.safetensors")
        assert not verify(tmp_path / "c.safetensors", ours, drowned, seed=0).holds
