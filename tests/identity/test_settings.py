"""What two configs mean for the verdict."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoints import made
from tests.cli.test_zoo import tnfn
from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.identity import Answer, Verdict, same
from transformer_nfn.identity.settings import SettingsCompared, compare_settings


def pair(tmp_path: Path, model: str, first: dict[str, Any], second: dict[str, Any]) -> list[Path]:
    """The same tensors under two configs."""
    start = made.save(made.model(model), tmp_path / "start")
    found = []
    for name, changes in (("a", first), ("b", second)):
        folder = Path(shutil.copytree(start, tmp_path / name))
        config = {**json.loads((folder / "config.json").read_text()), **changes}
        (folder / "config.json").write_text(json.dumps(config))
        found.append(folder)
    return found


def compared(a: Path, b: Path) -> SettingsCompared:
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        return compare_settings(ours, theirs)


def decide(a: Path, b: Path) -> Verdict:
    with Checkpoint(a) as ours, Checkpoint(b) as theirs:
        return same(ours, theirs)


@pytest.mark.parametrize(
    ("first", "second"),
    [({"warp": 1}, {"warp": 2}), ({}, {"warp": None}), ({"warp": 1}, {"warp": True})],
)
def test_an_unknown_key_that_differs_decides_nothing_even_of_the_same_bytes(
    first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    a, b = pair(tmp_path, "gpt2", first, second)
    verdict = decide(a, b)
    assert verdict.answer is Answer.UNDECIDED
    assert "differ in 'warp', and what that does is not known" in verdict.reason
    assert verdict.where == "config: 'warp'"


def test_an_unknown_key_that_both_share_is_reported(tmp_path: Path) -> None:
    given = {"warp": {"b": [1], "a": 2}, "\x1b[2J": 0}
    a, b = pair(tmp_path, "gpt2", given, {"\x1b[2J": 0, "warp": {"a": 2, "b": [1]}})
    verdict = decide(a, b)
    assert verdict.answer is Answer.SAME_BYTES
    assert verdict.unknown_settings == ("\x1b[2J", "warp")
    result = tnfn("same", a, b)
    assert result.exit_code == 0
    assert "what these settings do, the same in both" in result.stdout
    assert "warp" in result.stdout
    assert "\x1b" not in result.stdout
    assert json.loads(tnfn("same", a, b, "--json").stdout)["unknown_settings"][1] == "warp"
    c = pair(tmp_path / "more", "gpt2", {"\x1b[2J": 1}, {})[0]
    result = tnfn("same", a, c)
    assert result.exit_code == 4
    assert "\x1b" not in result.stdout


def test_without_unknown_keys_nothing_is_reported(tmp_path: Path) -> None:
    a, b = pair(tmp_path, "gpt2", {}, {"use_cache": False, "resid_pdrop": 0.5})
    assert decide(a, b).unknown_settings == ()
    assert json.loads(tnfn("same", a, b, "--json").stdout)["unknown_settings"] is None
    assert "unknown" not in tnfn("same", a, b).stdout


ROPE = {"rope_theta": 10000.0, "rope_type": "default"}


@pytest.mark.parametrize(
    ("model", "first", "second"),
    [
        ("gpt2", {}, {"activation_function": "gelu_pytorch_tanh"}),
        ("llama", {}, {"rope_theta": 10000}),
        ("llama", {"max_position_embeddings": 5}, {"max_position_embeddings": 50}),
        ("llama", {"pad_token_id": 5}, {"pad_token_id": 6}),
        (
            "mistral",
            {"sliding_window": None},
            {
                "sliding_window": None,
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
            },
        ),
        ("qwen2", {"sliding_window": 5}, {"sliding_window": 6}),
    ],
)
def test_other_words_for_the_same_are_the_same_function(
    model: str, first: dict[str, Any], second: dict[str, Any], tmp_path: Path
) -> None:
    a, b = pair(tmp_path, model, first, second)
    assert compared(a, b) == ((), (), ())
    assert decide(a, b).answer is Answer.SAME_BYTES


@pytest.mark.parametrize(
    ("model", "first", "second", "name"),
    [
        ("gpt2", {}, {"is_causal": False}, "causal"),
        ("gpt2", {}, {"layer_norm_epsilon": 0.1}, "eps"),
        ("vit", {"hidden_act": "relu"}, {}, "activation"),
        ("llama", {}, {"pretraining_tp": 2}, "pretraining_tp"),
        ("llama", {"attn_logit_softcapping": 30}, {}, "attn_logit_softcapping"),
        ("llama", {}, {"rope_parameters": {**ROPE, "rope_theta": 9.0}}, "rope"),
        ("mistral", {"sliding_window": 5}, {"sliding_window": 6}, "windows"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": 5},
            {
                "use_sliding_window": True,
                "sliding_window": 5,
                "layer_types": ["full_attention", "sliding_attention"],
            },
            "windows",
        ),
    ],
)
def test_settings_that_matter_never_are_the_same_function(
    model: str, first: dict[str, Any], second: dict[str, Any], name: str, tmp_path: Path
) -> None:
    a, b = pair(tmp_path, model, first, second)
    assert compared(a, b) == ((name,), (), ())
    verdict = decide(a, b)
    assert not verdict.answer.same_function
    assert verdict.where == f"config: {name}"


@pytest.mark.parametrize("kind", ["yarn", "dynamic"])
def test_the_longest_context_under_rotary_kinds_that_use_it(kind: str, tmp_path: Path) -> None:
    rope = {**ROPE, "rope_type": kind, "factor": 4.0}
    first, second = (
        {"rope_parameters": rope, "max_position_embeddings": longest} for longest in (32, 4096)
    )
    a, b = pair(tmp_path, "llama", first, second)
    assert compared(a, b).differ == ("rope",)
    assert decide(a, b).answer is Answer.UNDECIDED
    assert decide(a, a).answer is Answer.SAME_BYTES


def test_the_padding_token_of_a_classifier(tmp_path: Path) -> None:
    net = made.model("llama", cls="LlamaForSequenceClassification", pad_token_id=3)
    a = made.save(net, tmp_path / "a")
    b = Path(shutil.copytree(a, tmp_path / "b"))
    assert decide(a, b).answer is Answer.SAME_BYTES
    config = {**json.loads((a / "config.json").read_text()), "pad_token_id": 4}
    (b / "config.json").write_text(json.dumps(config))
    assert compared(a, b).differ == ("pad_token_id",)
    assert decide(a, b).answer is Answer.UNDECIDED
