"""Files of which a loader reads other tensors, files or settings than we do, or may."""

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.identity import (
    Answer,
    ElementError,
    apply_element,
    random_net_element,
    same,
)

Tensors = dict[str, Tensor]


def configured(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def with_tensors(folder: Path, change: Callable[[Tensors], None]) -> Path:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    return folder


def refused(folder: Path, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(folder)


def test_a_folder_with_two_sets_of_weights_is_refused(tmp_path: Path) -> None:
    net = made.model("gpt2")
    both = made.save(net, tmp_path / "both", max_shard_size="20KB")
    made.save(net, tmp_path / "one")
    shutil.copy(tmp_path / "one" / "model.safetensors", both)
    refused(both, "which one a loader takes is not clear")
    odd = made.save(net, tmp_path / "odd")
    (odd / "model.safetensors").rename(odd / "weights.safetensors")
    Checkpoint(odd).files.close()
    (odd / "pytorch_model.bin").write_bytes(b"")
    refused(odd, "a loader takes the second")


@pytest.mark.parametrize(
    ("family", "name", "other"),
    [
        ("gpt2", "transformer.h.0.mlp.c_fc.weight", "h.0.mlp.c_fc.weight"),
        ("llama", "model.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("llama", "model.norm.weight", "norm.weight"),
        ("vit", "vit.embeddings.cls_token", "embeddings.cls_token"),
    ],
)
def test_a_name_with_another_prefix_is_refused(
    family: str, name: str, other: str, tmp_path: Path
) -> None:
    folder = made.save(made.model(family), tmp_path)
    refused(with_tensors(folder, lambda t: t.update({other: t[name].flip(-1)})), "prefix")


def test_a_head_under_the_family_s_prefix_is_refused(tmp_path: Path) -> None:
    folder = made.save(made.model("llama", cls="LlamaForSequenceClassification"), tmp_path)
    with_tensors(folder, lambda t: t.update({"model.score.weight": t.pop("score.weight")}))
    refused(folder, "prefix")


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("gpt2", {"architectures": ["GPT2Model", "GPT2LMHeadModel"]}, "names 2 architectures"),
        ("llama", {"architectures": ["GemmaForCausalLM"]}, "which is no Llama"),
        ("qwen2", {"architectures": ["Qwen2MoeForCausalLM"]}, "which is no Qwen2"),
        ("gpt2", {"configuration_files": ["config.4.0.0.json"]}, "only None is supported"),
        ("llama", {"attribute_map": {"rms_norm_eps": "prefix"}}, "remove that key"),
        ("llama", {"attribute_map": {}}, "remove that key"),
        ("gpt2", {"norm": "rms"}, "no loader reads; .*--set norm=rms"),
        ("vit", {"id2label": {}}, "has 5 rows, config.json says 0 labels"),
        ("vit", {"id2label": {0: "a"}, "num_labels": 3}, "has 5 rows, config.json says 3 labels"),
    ],
)
def test_settings_of_loaders(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refused(configured(made.save(made.model(family), tmp_path), **changes), message)


def test_a_number_of_labels_comes_before_their_names(tmp_path: Path) -> None:
    folder = made.save(made.model("vit"), tmp_path)
    configured(folder, id2label={0: "a", 1: "b"}, num_labels=5)  # as a published BERT has it
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert made.load(folder, torch.float32).classifier.out_features == 5
    Checkpoint(folder).files.close()


def test_of_two_heads_the_class_reads_one(tmp_path: Path) -> None:
    one = made.save(made.model("llama", num_labels=60), tmp_path / "a")
    with_tensors(one, lambda t: t.update({"score.weight": t["lm_head.weight"].flip(0)}))
    shutil.copytree(one, tmp_path / "b")
    two = configured(tmp_path / "b", architectures=["LlamaForTokenClassification"])
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        verdict = same(ours, theirs)
    assert verdict.answer is Answer.UNDECIDED
    assert "'architectures'" in verdict.reason


def test_beside_a_reader_that_nobody_knows_nothing_moves(tmp_path: Path) -> None:
    """The scale of the last norm may not move into the head that we know: that one reads it too."""
    net = made.model("gpt2", cls="GPT2DoubleHeadsModel", tie_word_embeddings=False)
    folder = made.save(net, tmp_path / "a")
    scale = torch.linspace(0.5, 2, 24)

    def moved(tensors: Tensors) -> None:
        for part in ("weight", "bias"):
            tensors[f"transformer.ln_f.{part}"] /= scale
        tensors["lm_head.weight"] *= scale

    other = with_tensors(Path(shutil.copytree(folder, tmp_path / "b")), moved)
    with Checkpoint(folder) as ours, Checkpoint(other) as theirs:
        assert ours.unknown
        assert not same(ours, theirs).answer.same_function
        element = random_net_element(ours, torch.Generator().manual_seed(0))
        with pytest.raises(ElementError, match=r"multiple_choice_head.* use is not known"):
            apply_element(ours, element, tmp_path / "c")


@pytest.mark.parametrize(
    "name", ["cls.predictions.bias", "cls.predictions.transform.LayerNorm.weight"]
)
def test_what_a_loader_would_make_up_is_refused(name: str, tmp_path: Path) -> None:
    folder = with_tensors(made.save(made.model("bert"), tmp_path), lambda t: t.pop(name))
    refused(folder, f"has no {name}; a loader would make it up")


def old_names(tensors: Tensors) -> None:
    """What the first BERTs call the scale and shift of their norms."""
    for now, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        for name in [name for name in tensors if name.endswith(now)]:
            tensors[name.removesuffix(now) + old] = tensors.pop(name)


def test_old_names_of_norms_are_read_and_kept(tmp_path: Path) -> None:
    folder = made.save(made.model("bert"), tmp_path / "a")
    old = with_tensors(Path(shutil.copytree(folder, tmp_path / "b")), old_names)
    words = torch.randint(60, (2, 12), generator=torch.Generator().manual_seed(0))
    nets = [transformers.BertForMaskedLM.from_pretrained(path).eval() for path in (folder, old)]
    with torch.no_grad():
        one, two = (net(words).logits for net in nets)
    assert torch.equal(one, two), "a loader reads them so"
    with Checkpoint(folder) as ours, Checkpoint(old) as theirs:
        assert theirs.unknown == []
        assert same(ours, theirs).answer is Answer.SAME_TENSORS
        element = random_net_element(theirs, torch.Generator().manual_seed(0))
        moved = apply_element(theirs, element, tmp_path / "c")
        with Checkpoint(moved) as copy:
            assert same(ours, copy, seed=0).answer is Answer.EQUIVALENT
    assert set(load_file(moved / "model.safetensors")) >= set(load_file(old / "model.safetensors"))


@pytest.mark.parametrize("name", ["LayerNorm.gamma", "LayerNorm.beta"])
def test_a_norm_under_two_names_is_refused(name: str, tmp_path: Path) -> None:
    folder = made.save(made.model("bert"), tmp_path)
    with_tensors(folder, lambda t: t.update({f"bert.embeddings.{name}": torch.ones(24)}))
    refused(folder, "under its old name too")


def test_zeros_get_nothing_laid_over_them(tmp_path: Path) -> None:
    """A fresh ViT has biases of zero, and its random copies must be copies."""
    net = made.model("vit")
    with torch.no_grad():
        net.vit.embeddings.patch_embeddings.projection.bias.zero_()
    with Checkpoint(made.save(net, tmp_path / "a")) as ours:
        element = random_net_element(ours, torch.Generator().manual_seed(0))
        with Checkpoint(apply_element(ours, element, tmp_path / "b")) as theirs:
            assert same(ours, theirs).answer is Answer.EQUIVALENT


def test_families_of_the_folder_one_is_in_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformer_nfn.checkpoints.families import installed

    evil = tmp_path / "evil-1.0.dist-info"
    evil.mkdir()
    (evil / "METADATA").write_text("Name: evil\nVersion: 1.0\n")
    (evil / "entry_points.txt").write_text("[transformer_nfn.families]\nx = evil:FAMILY\n")
    (tmp_path / "evil.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    for place in ("", str(tmp_path)):
        monkeypatch.syspath_prepend(place)
        installed.cache_clear()
        assert installed() == ()
