"""Tensors and settings that nobody knows: a loader may make something of them, so we do not decide.

`transformers` adds and strips prefixes name by name, with a dot that stands for any letter, and
takes the first of two names that are one parameter. A tensor that no table names may so be read in
the place of one that we compare.
"""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from benchmarks.material.families import (
    ARCHITECTURES,
    as_one,
    exact,
    inputs,
    load,
    make,
    outputs,
    quiet,
)
from benchmarks.same.families import moved, relative
from tests.identity.test_loaders import configured
from transformer_nfn.checkpoints import FAMILIES, Checkpoint, CheckpointError, TensorFiles
from transformer_nfn.identity import (
    Answer,
    ElementError,
    apply_element,
    random_net_element,
    run,
    same,
    save_certificate,
    verify,
)

EVERY = sorted(ARCHITECTURES)


def with_tensors(folder: Path, out: Path, **given: torch.Tensor) -> Path:
    shutil.copytree(folder, out)
    file = out / "model.safetensors"
    save_file({**load_file(file), **given}, file, {"format": "pt"})
    return out


def decided(one: Path, two: Path) -> Answer:
    with Checkpoint(one) as ours, Checkpoint(two) as theirs:
        return same(ours, theirs, seed=0, search=False).answer


# ------------------------------------------------------------------------------------- tensors

_VIT = "encoder.layer.0.attention.attention"
#: Where a loader reads the second instead of the first.
SHADOWS = [
    ("bert", "bert.encoder.layer.0.attention.self.query.weight", "bert.{}"),
    ("bert", "cls.predictions.bias", "bert.{}"),
    ("roberta", "lm_head.decoder.bias", "roberta_{}"),
    ("gpt_neox", "gpt_neox.layers.0.attention.query_key_value.weight", "gpt_neox.{}"),
    ("clip_vision_model", "encoder.layers.0.self_attn.q_proj.weight", "clip.{}"),
    ("vit", f"vit.{_VIT}.query.weight", "layers.0.attention.q_proj.weight"),
]


@pytest.mark.parametrize(("name", "read", "pattern"), SHADOWS)
def test_a_tensor_in_the_place_of_another_decides_nothing(
    name: str, read: str, pattern: str, tmp_path: Path
) -> None:
    folder = make(name, tmp_path / "a")
    tensors = load_file(folder / "model.safetensors")
    like = tensors.get(read, torch.zeros(60, dtype=torch.float64))
    shadow = pattern.format(read)
    other = with_tensors(folder, tmp_path / "b", **{shadow: torch.randn_like(like)})
    given = inputs(folder)
    before, after = (outputs(exact(load(path)), given) for path in (folder, other))
    assert relative(after, before) > 1e-2, "a loader takes it"
    assert decided(folder, other) is Answer.UNDECIDED
    assert decided(other, folder) is Answer.UNDECIDED
    third = shutil.copytree(other, tmp_path / "c")
    assert decided(other, Path(third)) is Answer.SAME_BYTES
    with Checkpoint(other) as shadowed:
        assert shadow in shadowed.unknown
        element = random_net_element(shadowed, torch.Generator().manual_seed(0))
        with pytest.raises(ElementError, match="use is not known"):
            apply_element(shadowed, element, tmp_path / "d")


def test_a_tensor_that_nobody_knows_decides_nothing_wherever_it_is(tmp_path: Path) -> None:
    folder = make("llama", tmp_path / "a", dtype=torch.float32)
    other = moved(folder, tmp_path / "b", 1)
    assert decided(folder, other) is Answer.EQUIVALENT
    stranger = {"stranger.weight": torch.ones(3)}
    one, two = (with_tensors(p, tmp_path / f"{p.name}2", **stranger) for p in (folder, other))
    assert decided(one, two) is Answer.UNDECIDED
    assert decided(one, other) is Answer.UNDECIDED
    assert decided(folder, two) is Answer.UNDECIDED


def test_no_certificate_holds_beside_one(tmp_path: Path) -> None:
    folder = make("gpt2", tmp_path / "a", dtype=torch.float32)
    other = moved(folder, tmp_path / "b", 1)
    strange = with_tensors(other, tmp_path / "c", **{"stranger.weight": torch.ones(3)})
    with Checkpoint(folder) as ours, Checkpoint(other) as theirs, Checkpoint(strange) as third:
        element = same(ours, theirs, seed=0).element
        assert element is not None
        for target, holds in ((theirs, True), (third, False)):
            path = tmp_path / f"{holds}.safetensors"
            save_certificate(element, ours, target, path)
            found = verify(path, ours, target, seed=0)
            assert found.holds is holds
        assert "'stranger.weight' whose use is not known" in found.reason


#: Classes whose outputs are made of all hidden states, and what they are called.
SUMMARIES = [
    ("siglip_vision_model", "SiglipVisionModel", "pooler_output", "pooler_output"),
    ("clip_vision_model", "CLIPVisionModel", "pooler_output", "pooler_output"),
    ("clip_vision_model", "CLIPVisionModelWithProjection", "image_embeds", "image_embeds"),
    ("dinov2", "Dinov2ForImageClassification", "logits", "classifier"),
]


@pytest.mark.parametrize(("name", "model", "theirs", "ours"), SUMMARIES)
def test_what_is_made_of_hidden_states_is_run(
    name: str, model: str, theirs: str, ours: str, tmp_path: Path
) -> None:
    folder = make(name, tmp_path / "a", model=model)
    images = inputs(folder)["pixel_values"]
    with torch.no_grad(), quiet():
        wanted = exact(load(folder))(pixel_values=images)[theirs]
    with Checkpoint(folder) as checkpoint:
        assert checkpoint.unknown == []
        assert relative(run(checkpoint, images)[ours], wanted) < 1e-9


@pytest.mark.parametrize(
    ("name", "model", "changed"),
    [
        ("dinov2", "Dinov2ForImageClassification", "classifier.weight"),
        ("clip_vision_model", "CLIPVisionModelWithProjection", "visual_projection.weight"),
        ("siglip_vision_model", "SiglipVisionModel", "head.mlp.fc2.bias"),
    ],
)
def test_digits_that_all_lean_one_way_in_a_head_are_seen(
    name: str, model: str, changed: str, tmp_path: Path
) -> None:
    """Each number is off by what rounding may do; all together they are no rounding."""
    folder = make(name, tmp_path / "a", model=model)
    file = folder / "model.safetensors"
    single = {n: t.half() for n, t in load_file(file).items()}
    single = {n: t * 20 if n == changed else t for n, t in single.items()}
    save_file(single, file, {"format": "pt"})
    mine = single[changed]
    off = mine.abs() * (1 + 2**-10)
    leaning = {n: off.to(t.dtype) if t is mine else t for n, t in single.items()}
    plain = {n: mine.abs() if t is mine else t for n, t in single.items()}
    one, two = (with_tensors(folder, tmp_path / o, **w) for o, w in (("b", plain), ("c", leaning)))
    assert not decided(one, two).same_function


@pytest.mark.parametrize(
    ("gone", "wrong"), [("head.probe", None), (None, "head.mlp.fc1.bias"), (None, "head.probe")]
)
def test_half_of_a_head_and_other_shapes_are_refused(
    gone: str | None, wrong: str | None, tmp_path: Path
) -> None:
    file = make("siglip_vision_model", tmp_path) / "model.safetensors"
    tensors = load_file(file)
    found = next(n for n in tensors if n.endswith(gone or wrong or ""))
    if gone:
        del tensors[found]
    else:
        tensors[found] = torch.ones(5, dtype=torch.float64)
    save_file(tensors, file, {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"head\.(probe|mlp\.fc1\.bias)"):
        Checkpoint(tmp_path)


CLASSES = [
    *((name, ARCHITECTURES[name].model) for name in EVERY),
    *((name, model) for name, model, _, _ in SUMMARIES),
    ("bert", "BertForPreTraining"),
    ("bert", "BertForSequenceClassification"),
    ("llama", "LlamaForSequenceClassification"),
]


@pytest.mark.parametrize(("name", "model"), CLASSES)
def test_all_that_is_no_stranger_is_run(
    name: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compared only number by number would leave room for digits that lean one way."""
    folder = make(name, tmp_path, model=model)
    touched: set[str] = set()
    for reader in ("read", "chunks", "rows", "slice"):
        plain = getattr(TensorFiles, reader)

        def noted(self: TensorFiles, which: str, *given: Any, plain: Any = plain) -> Any:
            touched.add(which)
            return plain(self, which, *given)

        monkeypatch.setattr(TensorFiles, reader, noted)
    with Checkpoint(folder) as checkpoint:
        ignored = checkpoint.family.ignored
        wanted = {n for n in checkpoint.files if not (ignored and n.endswith(ignored))}
        assert checkpoint.unknown == []
        touched.clear()
        given = as_one(inputs(folder))
        if name in ("bert", "electra", "albert"):
            given = torch.stack([given, torch.zeros_like(given)], dim=1)
        run(checkpoint, given)
    assert touched >= wanted


# ------------------------------------------------------------------------------------ settings

_FOLDERS = {"xlm-roberta": "xlm_roberta", "gemma3_text": "gemma3"}
_FOLDERS |= {"clip_vision_model": "clip", "siglip_vision_model": "siglip"}
#: What is no setting, is asked only before an error, or is of a class beside ours in the same file.
_NO_SETTING = {"_attn_implementation", "get_text_config", "text_config", "vision_config"}
_NO_SETTING |= {"_is_quantized", "embedding_size"}
_OF_OTHERS = {
    "siglip_vision_model": {"max_position_embeddings", "projection_size", "vocab_size"},
    "clip_vision_model": {"logit_scale_init_value", "max_position_embeddings", "vocab_size"},
    "electra": {"summary_proj_to_labels"},  # of multiple choice, which is refused
    "gemma3_text": {"image_token_id", "mm_tokens_per_image"},
    "whisper": {"n_positions"},  # of a docstring
}
_READ = re.compile(r'\bconfig\.([A-Za-z_0-9]+)|(?:get|has)attr\((?:self\.)?config, "(\w+)"')


def read_of_a_config(*sources: Path) -> set[str]:
    found = (match for path in sources for match in _READ.findall(path.read_text()))
    return {one or two for one, two in found}


@pytest.mark.parametrize("name", EVERY)
def test_every_setting_that_transformers_reads_is_known(name: str) -> None:
    """So no key that both files have and nobody knows changes what a symmetry is."""
    home = Path(transformers.__file__).parent
    models = home / "models" / _FOLDERS.get(name, name)
    read = read_of_a_config(*models.glob("modeling_*.py"), home / "masking_utils.py")
    read |= {"head_dim", "token_classification_bias"}  # of positions and of labels of tokens
    family = next(f for f in FAMILIES.values() if name in f.keys)
    known = family.keys[name].known | (family.encoder.keys[name].known if family.encoder else set())
    assert len(read) > 5
    assert read - known - _NO_SETTING - _OF_OTHERS.get(name, set()) <= {"is_causal"}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gpt_neox", "head_dim", 16),
        ("falcon", "head_dim", 2),
        ("llama", "token_classification_bias", False),
        ("opt", "is_causal", False),
        ("gpt2", "sliding_window", 4),
        ("phi", "attention_chunk_size", 4),
    ],
)
def test_settings_that_common_code_reads_are_refused(
    name: str, key: str, value: Any, tmp_path: Path
) -> None:
    folder = configured(make(name, tmp_path), **{key: value})
    with pytest.raises(CheckpointError, match=key):
        Checkpoint(folder)


@pytest.mark.parametrize(
    ("stored", "stated", "same_function"),
    [
        ((torch.float32, torch.float32), ("float32", "bfloat16"), False),
        ((torch.float32, torch.float32), ("bfloat16", "bfloat16"), True),
        ((torch.float32, torch.float32), ("float32", "float64"), True),
        ((torch.bfloat16, torch.float32), ("bfloat16", "bfloat16"), True),
        ((torch.bfloat16, torch.float32), ("bfloat16", "float16"), False),
        ((torch.float32, torch.float32), (None, "auto"), True),
    ],
)
def test_a_dtype_that_rounds_what_is_stored_is_a_setting(
    stored: tuple[torch.dtype, torch.dtype],
    stated: tuple[str | None, str | None],
    same_function: bool,
    tmp_path: Path,
) -> None:
    """A loader obeys the config, and then has other numbers than the file."""
    first = make("gpt2", tmp_path / "0", dtype=stored[0])
    second = Path(shutil.copytree(first, tmp_path / "1"))
    file = second / "model.safetensors"
    tensors = {n: t.to(stored[1]) for n, t in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    for folder, kind in zip((first, second), stated, strict=True):
        configured(folder, dtype=kind)
    assert decided(first, second).same_function is same_function


# --------------------------------------------------------------------------- small hostile files


@pytest.mark.parametrize("name", ["siglip_vision_model", "clip_vision_model", "vit"])
def test_an_image_of_more_patches_than_places_is_refused(name: str, tmp_path: Path) -> None:
    folder = configured(make(name, tmp_path), image_size=1200)
    with pytest.raises(CheckpointError, match="places"):
        Checkpoint(folder)


def test_a_small_file_asks_for_no_thousand_depths(tmp_path: Path) -> None:
    folder = configured(make("albert", tmp_path), num_hidden_layers=100_000)
    with pytest.raises(CheckpointError, match="100000 depths"):
        Checkpoint(folder)


@pytest.mark.parametrize("value", [0, -4])
def test_scores_are_divided_by_something(value: float, tmp_path: Path) -> None:
    folder = configured(make("gemma2", tmp_path), query_pre_attn_scalar=value)
    with pytest.raises(CheckpointError, match="query_pre_attn_scalar"):
        Checkpoint(folder)
