"""Adapters as PEFT writes and loads them."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.cli.run import tnfn
from transformer_nfn.adapters import Adapter, is_adapter, move_adapter, same_adapters
from transformer_nfn.checkpoints import CheckpointError
from transformer_nfn.identity import Answer, Verdict

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
Tensors = dict[str, Tensor]


def base() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, vocab_size=50
    )
    return transformers.LlamaForCausalLM(config).eval()


def make(out: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> Path:
    """An adapter of which nothing is 0, as after training."""
    given = {"r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    net = get_peft_model(base(), LoraConfig(**(given | settings)))
    torch.manual_seed(1)
    for name, parameter in net.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    net.save_pretrained(out)
    tensors = {name: t.to(dtype) for name, t in load_file(out / WEIGHTS).items()}
    save_file(tensors, out / WEIGHTS, {"format": "pt"})
    return out


def logits(folder: Path, dtype: torch.dtype = torch.float64) -> Tensor:
    net = PeftModel.from_pretrained(base(), folder).to(dtype).eval()
    ids = torch.arange(30).view(2, 15)
    with torch.no_grad():
        return net(input_ids=ids).logits


def moved(folder: Path, out: Path, condition: float = 10.0) -> Path:
    with Adapter(folder) as adapter:
        return move_adapter(adapter, out, torch.Generator().manual_seed(1), condition=condition)


def changed(folder: Path, out: Path, change: Callable[[Tensors], None]) -> Path:
    shutil.copytree(folder, out)
    tensors = load_file(out / WEIGHTS)
    change(tensors)
    save_file({n: t.contiguous() for n, t in tensors.items()}, out / WEIGHTS, {"format": "pt"})
    return out


def configured(folder: Path, out: Path, **changes: Any) -> Path:
    shutil.copytree(folder, out)
    config = json.loads((out / CONFIG).read_text()) | changes
    (out / CONFIG).write_text(json.dumps(config))
    return out


def decided(one: Path, two: Path) -> Verdict:
    with Adapter(one) as ours, Adapter(two) as theirs:
        return same_adapters(ours, theirs, seed=0)


@pytest.mark.parametrize(
    ("dtype", "condition"),
    [(torch.float32, 10.0), (torch.float32, 1e3), (torch.bfloat16, 4.0), (torch.float16, 4.0)],
)
def test_another_basis_between_the_two_matrices_is_the_same_function(
    dtype: torch.dtype, condition: float, tmp_path: Path
) -> None:
    folder = make(tmp_path / "a", dtype)
    other = moved(folder, tmp_path / "b", condition)
    apart = (logits(other) - logits(folder)).norm() / logits(folder).norm()
    assert apart < 100 * torch.finfo(dtype).eps
    assert is_adapter(other)
    for pair in ((folder, other), (other, folder), (other, moved(other, tmp_path / "c", 4.0))):
        verdict = decided(*pair)
        assert verdict.answer is Answer.EQUIVALENT
        assert verdict.residual is not None
        assert 0 < verdict.residual < 1.3
    assert decided(folder, folder).answer is Answer.SAME_TENSORS


def test_the_scale_may_be_anywhere(tmp_path: Path) -> None:
    folder = make(tmp_path / "a")

    def up(tensors: Tensors) -> None:
        for name in tensors:
            if "lora_B" in name:
                tensors[name] = 3 * tensors[name]

    other = changed(folder, tmp_path / "b", up)
    assert decided(folder, other).answer is Answer.DIFFERENT
    third = configured(other, tmp_path / "c", lora_alpha=2)
    assert (logits(third) - logits(folder)).abs().max() < 1e-5
    assert decided(folder, third).answer is Answer.EQUIVALENT
    rooted = configured(other, tmp_path / "d", lora_alpha=1, use_rslora=True)
    assert (logits(rooted) - logits(folder)).abs().max() < 1e-5
    assert decided(folder, rooted).answer is Answer.EQUIVALENT


def test_a_larger_rank_with_the_same_products(tmp_path: Path) -> None:
    folder, wide = make(tmp_path / "a"), make(tmp_path / "wide", r=6, lora_alpha=9)

    def padded(tensors: Tensors) -> None:
        for name, small in load_file(folder / WEIGHTS).items():
            tensors[name] = torch.zeros_like(tensors[name])
            tensors[name][: len(small), : small.shape[1]] = small

    other = moved(changed(wide, tmp_path / "b", padded), tmp_path / "c")
    assert (logits(other) - logits(folder)).abs().max() < 1e-5
    assert decided(folder, other).answer is Answer.EQUIVALENT


def noise(tensors: Tensors) -> None:
    """Ten roundings on every number."""
    generator = torch.Generator().manual_seed(2)
    for name, tensor in tensors.items():
        step = 10 * torch.finfo(tensor.dtype).eps * torch.randn(tensor.shape, generator=generator)
        tensors[name] = (tensor.double() * (1 + step.double())).to(tensor.dtype)


def one_row(tensors: Tensors) -> None:
    """One output of one module."""
    name = next(name for name in tensors if "lora_B" in name)
    tensors[name][3] = (tensors[name][3].double() * 1.02).to(tensors[name].dtype)


def one_column(tensors: Tensors) -> None:
    """One input of one module."""
    name = next(name for name in tensors if "lora_A" in name)
    tensors[name][:, 5] = (tensors[name][:, 5].double() * 1.02).to(tensors[name].dtype)


def weak_direction(tensors: Tensors) -> None:
    """A change along the weakest direction of B, which rounding hardly reaches."""
    name = next(name for name in tensors if "lora_B" in name)
    U, S, V = torch.linalg.svd(tensors[name].double(), full_matrices=False)
    S[-1] *= 1.05
    tensors[name] = (U * S @ V).to(tensors[name].dtype)


def exchanged(tensors: Tensors) -> None:
    """The adapters of two modules."""
    names = [name for name in tensors if "q_proj" in name and "lora_A" in name]
    one, two = names[:2]
    tensors[one], tensors[two] = tensors[two], tensors[one]


@pytest.mark.parametrize("change", [noise, one_row, one_column, weak_direction, exchanged])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_no_rounding_is_not_the_same(
    change: Callable[[Tensors], None], dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = make(tmp_path / "a", dtype)
    other = changed(folder, tmp_path / "b", change)
    third = moved(other, tmp_path / "c", 4.0)
    verdict = decided(folder, third)
    assert not verdict.answer.same_function
    if change is not weak_direction and change is not one_row and change is not one_column:
        assert verdict.answer is Answer.DIFFERENT
    assert verdict.where is not None


def test_what_overflows_in_the_stored_dtype_is_not_decided(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", torch.float16)

    def large(tensors: Tensors) -> None:
        for name in tensors:
            size = 2.0**16 if "lora_A" in name else 2.0**-8
            tensors[name] = (tensors[name].double() * min(size, 2.0**15)).half()

    other = configured(changed(folder, tmp_path / "b", large), tmp_path / "c", lora_alpha=6 / 2**7)
    assert decided(folder, other).answer is Answer.UNDECIDED


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target_modules", ["q_proj", "v_proj"]),
        ("base_model_name_or_path", "another"),
        ("layers_to_transform", [0]),
        ("layers_to_transform", 0),
        ("target_modules", []),
        ("fan_in_fan_out", True),
        ("task_type", "SEQ_CLS"),
    ],
)
def test_adapters_for_other_places_are_not_compared(key: str, value: Any, tmp_path: Path) -> None:
    folder = make(tmp_path / "a")
    verdict = decided(folder, configured(folder, tmp_path / "b", **{key: value}))
    assert verdict.answer is Answer.UNDECIDED
    assert key in verdict.reason


def test_the_order_of_modules_in_a_config_is_none(tmp_path: Path) -> None:
    folder = make(tmp_path / "a")
    names = sorted(["q_proj", "v_proj", "down_proj"])
    one = configured(folder, tmp_path / "b", target_modules=names)
    two = configured(folder, tmp_path / "c", target_modules=names[::-1])
    assert decided(one, two).answer is Answer.SAME_TENSORS


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"bias": "all"}, "bias"),
        ({"init_lora_weights": "pissa"}, "init_lora_weights"),
        ({"init_lora_weights": False}, "init_lora_weights"),
        ({"kasa_config": {}}, "kasa_config"),
        ({"alora_invocation_tokens": []}, "alora_invocation_tokens"),
        ({"use_dora": 0}, "use_dora"),
        ({"peft_type": "IA3"}, "peft_type"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"something_new": 1}, "something_new"),
        ({"r": 5}, "r = 5"),
        ({"r": True}, "r is True"),
        ({"lora_alpha": "6"}, "lora_alpha is '6'"),
    ],
)
def test_settings_that_make_something_else_are_refused(
    changes: dict[str, Any], says: str, tmp_path: Path
) -> None:
    folder = configured(make(tmp_path / "a"), tmp_path / "b", **changes)
    with pytest.raises(CheckpointError, match=says):
        Adapter(folder)


@pytest.mark.parametrize("name", ["lora_magnitude_vector", "lora_B.bias", "lora_embedding_A"])
def test_tensors_that_are_not_of_a_product_are_refused(name: str, tmp_path: Path) -> None:
    def add(tensors: Tensors) -> None:
        tensors[f"base_model.model.model.layers.0.self_attn.q_proj.{name}"] = torch.ones(24)

    folder = changed(make(tmp_path / "a"), tmp_path / "b", add)
    with pytest.raises(CheckpointError, match=name):
        Adapter(folder)


def test_a_module_without_one_of_its_matrices_is_refused(tmp_path: Path) -> None:
    def take(tensors: Tensors) -> None:
        del tensors[next(name for name in tensors if "lora_B" in name)]

    folder = changed(make(tmp_path / "a"), tmp_path / "b", take)
    with pytest.raises(CheckpointError, match="lacks one"):
        Adapter(folder)


def test_numbers_that_are_not_finite_decide_nothing(tmp_path: Path) -> None:
    def nan(tensors: Tensors) -> None:
        tensors[next(iter(tensors))][0, 0] = torch.nan

    folder = changed(make(tmp_path / "a"), tmp_path / "b", nan)
    assert decided(folder, folder).answer is Answer.UNDECIDED


def test_rows_and_columns_of_zeros_are_exact(tmp_path: Path) -> None:
    """Those of inputs that never occur, and of outputs that nobody trained."""

    def gone(tensors: Tensors) -> None:
        for name, tensor in tensors.items():
            if "lora_A" in name:
                tensor[:, 2] = 0
            else:
                tensor[1] = 0

    folder = changed(make(tmp_path / "a"), tmp_path / "b", gone)
    other = moved(folder, tmp_path / "c")
    assert decided(folder, other).answer is Answer.EQUIVALENT

    def little(tensors: Tensors) -> None:
        name = next(name for name in tensors if "lora_B" in name)
        tensors[name][1] = 1e-9

    third = changed(other, tmp_path / "d", little)
    assert decided(folder, third).answer is Answer.DIFFERENT


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path / "a")

    def said(*words: str) -> tuple[int, dict[str, Any]]:
        done = tnfn(capsys, *words, "--json")
        return done.code, json.loads(done.out)

    other = str(tmp_path / "b")
    assert said("reparam", str(folder), "--out", other, "--seed", "3")[0] == 0
    code, found = said("same", str(folder), other)
    assert (code, found["answer"]) == (0, "equivalent")
    wrong = changed(folder, tmp_path / "c", one_row)
    code, found = said("same", f"{wrong}/{WEIGHTS}", other)
    assert (code, found["answer"]) == (3, "different")
    assert found["where"].startswith("base_model.model.")
    code, found = said("inspect", other)
    assert (code, found["rank"], found["modules"], found["dimension"]) == (0, 4, 6, 96)
    done = tnfn(capsys, "same", folder, other, "--certificate", tmp_path / "c.safetensors")
    assert (done.code, "no certificate, picture or page" in done.err) == (1, True)
    for command in ("same", "kin"):
        done = tnfn(capsys, command, folder, tmp_path)
        assert done.code == 1
        assert "is a LoRA adapter: compare it with another adapter, or merge it" in done.err


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_matrices_that_cancel_hide_nothing(dtype: torch.dtype, tmp_path: Path) -> None:
    """Two more of each, equal and opposite: their rounding would cover what else is changed."""
    folder = make(tmp_path / "a", dtype)
    wide = make(tmp_path / "wide", dtype, r=6, lora_alpha=9)
    large = 2.0**12 if dtype == torch.bfloat16 else 2.0**26

    def covered(tensors: Tensors) -> None:
        for name, small in load_file(folder / WEIGHTS).items():
            if "lora_B" in name:
                tensors[name][:, :4] = 1.3 * small
                tensors[name][:, 4:] = large * tensors[name][:, 4:5]
            else:
                tensors[name][:4] = small
                tensors[name][5] = -tensors[name][4]

    other = changed(wide, tmp_path / "b", covered)
    assert not decided(folder, other).answer.same_function
    assert not decided(other, folder).answer.same_function


@pytest.mark.parametrize(("up", "alpha"), [(64, -128), (-80, 160)])
def test_a_scale_that_a_loader_cannot_carry(up: int, alpha: int, tmp_path: Path) -> None:
    folder = make(tmp_path / "a")

    def large(tensors: Tensors) -> None:
        for name in tensors:
            tensors[name] = tensors[name] * 2.0**up

    other = configured(
        changed(folder, tmp_path / "b", large), tmp_path / "c", lora_alpha=6 * 2.0**alpha
    )
    assert logits(folder, torch.float32).isfinite().all()
    assert not logits(other, torch.float32).isfinite().all()
    assert decided(folder, other).answer is Answer.UNDECIDED


def test_float64_that_float32_cannot_hold(tmp_path: Path) -> None:
    folder = make(tmp_path / "a", torch.float64)
    assert decided(folder, moved(folder, tmp_path / "m")).answer is Answer.EQUIVALENT

    def large(tensors: Tensors) -> None:
        for name in tensors:
            tensors[name] = tensors[name] * 2.0 ** (130 if "lora_A" in name else -130)

    other = changed(folder, tmp_path / "b", large)
    assert decided(folder, other).answer is Answer.UNDECIDED


def test_nothing_is_written_over_an_adapter(tmp_path: Path) -> None:
    folder = make(tmp_path / "a")
    with pytest.raises(CheckpointError, match="choose another"):
        moved(folder, folder)
