"""Parts of a model: the body without heads, the encoder alone, one tower of a pair."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from benchmarks.material.families import make, quiet
from transformer_nfn.checkpoints import Checkpoint, CheckpointError, UnsupportedError
from transformer_nfn.identity import Answer, Verdict, same
from transformer_nfn.testing import assert_same_function, assert_within


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("parts")
    make("bert", home / "bert", dtype=torch.float32)
    make("t5", home / "t5", dtype=torch.float32)
    make("whisper", home / "whisper", dtype=torch.float32)
    make("gpt2", home / "gpt2", dtype=torch.float32)
    sizes = {
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
    }
    images = {**sizes, "image_size": 12, "patch_size": 4}
    words = {**sizes, "vocab_size": 60, "max_position_embeddings": 16}
    with quiet():
        bert = transformers.BertModel
        bert.from_pretrained(home / "bert").save_pretrained(home / "pooled")
        bare = bert.from_pretrained(home / "pooled", add_pooling_layer=False)
        bare.save_pretrained(home / "bare")
        encoder = transformers.T5EncoderModel.from_pretrained(home / "t5")
        encoder.save_pretrained(home / "encoder")
        bare = transformers.GPT2Model.from_pretrained(home / "gpt2")
        bare.save_pretrained(home / "gpt2-bare")
        torch.manual_seed(0)
        config = transformers.CLIPConfig(text_config=words, vision_config=images)
        transformers.CLIPModel(config).save_pretrained(home / "clip")
        tower = transformers.CLIPVisionModel.from_pretrained(home / "clip")
        tower.save_pretrained(home / "tower")
    return home


def ask(one: Path, two: Path, only: str | None) -> Verdict:
    with Checkpoint(one, only=only) as ours, Checkpoint(two, only=only) as theirs:
        return same(ours, theirs, seed=0)


def changed(
    folder: Path, out: Path, name: str, change: Callable[[dict[str, Tensor]], None] | None = None
) -> Path:
    out.mkdir()
    tensors = load_file(folder / "model.safetensors")
    if change is None:
        tensors[name] = tensors[name] + 0.5 * torch.randn(tensors[name].shape)
    else:
        change(tensors)
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_bytes((folder / "config.json").read_bytes())
    return out


PAIRS = [
    ("pooled", "bare", "body", "encoder.layer.1.output.dense.weight"),
    ("bert", "bare", "body", "embeddings.word_embeddings.weight"),
    ("t5", "encoder", "encoder", "encoder.block.1.layer.1.DenseReluDense.wo.weight"),
    ("whisper", "whisper", "encoder", "model.encoder.conv1.weight"),
    ("gpt2", "gpt2-bare", "body", "h.1.mlp.c_fc.weight"),
    ("clip", "tower", "vision_model", "vision_model.encoder.layers.1.mlp.fc1.weight"),
]


@pytest.mark.parametrize(("one", "two", "only", "name"), PAIRS)
def test_a_part_is_compared_and_the_rest_is_not(
    one: str, two: str, only: str, name: str, home: Path, tmp_path: Path
) -> None:
    found = ask(home / one, home / two, only)
    assert found.answer.same_function
    assert_same_function(home / one, home / two, only=only)
    assert assert_within(home / one, home / two, 1e-6, only=only).largest < 1e-6
    other = changed(home / two, tmp_path / "other", name)
    assert ask(home / one, other, only).answer is Answer.DIFFERENT


def test_what_stands_beside_the_part_may_differ(home: Path, tmp_path: Path) -> None:
    other = changed(home / "pooled", tmp_path / "head", "pooler.dense.weight")
    assert ask(home / "pooled", other, None).answer is Answer.DIFFERENT
    assert ask(home / "pooled", other, "body").answer is Answer.SAME_TENSORS
    name = "decoder.block.0.layer.0.SelfAttention.q.weight"
    other = changed(home / "t5", tmp_path / "decoder", name)
    # The headers of both files are the same, and so are all tensors of the encoder.
    assert ask(home / "t5", other, "encoder").answer is Answer.SAME_TENSORS


def test_a_tensor_that_nobody_knows_is_none_of_a_head(home: Path, tmp_path: Path) -> None:
    def add(tensors: dict[str, Tensor]) -> None:
        tensors["adapter.weight"] = torch.randn(24, 24)

    other = changed(home / "bare", tmp_path / "more", "", add)
    found = ask(home / "pooled", other, "body")
    assert found.answer is Answer.UNDECIDED
    assert "adapter.weight" in found.reason


@pytest.mark.parametrize(("one", "two"), [("pooled", "bare"), ("gpt2", "gpt2-bare")])
def test_the_body_is_compared_by_itself(one: str, two: str, home: Path) -> None:
    with pytest.raises(AssertionError, match=r"without heads they are: (same tensors|equivalent)"):
        assert_same_function(home / one, home / two)


def test_a_tower_and_an_encoder_without_a_prefix(home: Path, tmp_path: Path) -> None:
    def bare(tensors: dict[str, Tensor], prefix: str) -> None:
        for name in list(tensors):
            tensors[name.removeprefix(prefix)] = tensors.pop(name)

    for folder, only, prefix in (
        ("tower", "vision_model", "vision_model."),
        ("whisper", "encoder", "model."),
    ):
        other = changed(home / folder, tmp_path / folder, "", lambda t, p=prefix: bare(t, p))
        assert ask(home / folder, other, only).answer.same_function


def test_an_encoder_alone_is_recognised(home: Path) -> None:
    with pytest.raises(UnsupportedError, match="say --only encoder"):
        Checkpoint(home / "encoder")


@pytest.mark.parametrize(
    ("folder", "only", "why"),
    [
        ("clip", "vision", "here logit_scale, text_model, text_projection, vision_model"),
        ("bert", "encoder", "has no encoder of an encoder-decoder"),
        ("clip", "text_model", "of no family we know"),
    ],
)
def test_parts_that_are_not_there(folder: str, only: str, why: str, home: Path) -> None:
    with pytest.raises(CheckpointError, match=why):
        Checkpoint(home / folder, only=only)
