"""Forgeries in config.json: the same tensors, another function; and what nobody may decide.

What they compute is measured with `transformers` itself, since our own `run` may not know the
setting. Where a config says something that no reader can know the meaning of, the answer is
declared instead: it must not be "the same".
"""

import contextlib
import io
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.same.forging.bases import DTYPES, Bases, log_uniform, pick
from benchmarks.same.forging.draft import Draft
from benchmarks.same.forging.kinds import special
from benchmarks.same.forging.measure import (
    LINE,
    LINE_ON_ONE,
    MANY,
    OUTSTANDING,
    Apart,
    rounding_levels,
)
from benchmarks.same.forging.pairs import Case, Pair, drawn_base, moved
from benchmarks.same.forging.roles import UnfitError
from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint, CheckpointError
from transformer_nfn.checkpoints.families import FAMILIES
from transformer_nfn.checkpoints.settings.harmless import HARMLESS
from transformer_nfn.identity.running.inputs import NetInputs, SourceAndTarget

#: Tokens of the inputs: settings of positions show on long ones.
_LENGTH = 48
#: Roundings of a base that settings are measured against.
_JITTERS = 6

Config = dict[str, Any]


def _first(config: Config, *names: str) -> str:
    """The name by which this family calls a setting."""
    for name in names:
        if name in config:
            return name
    raise UnfitError(f"no {names[0]}")


def _rope_table(config: Config) -> Config:
    """Its rotary positions, where all blocks have the same."""
    table: Config = config[_first(config, "rope_parameters")]
    _first(table, "rope_theta")
    return table


def _eps(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    name = _first(ours, "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps")
    theirs[name] = max(ours[name], 1e-7) * log_uniform(generator, 2, 1e4)


def _theta(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    table = _rope_table(theirs)
    table["rope_theta"] *= log_uniform(generator, 1.01, 3)


def _rope_kind(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    table = _rope_table(theirs)
    table |= {"rope_type": "linear", "factor": log_uniform(generator, 1.02, 4)}


def _activation(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    name = _first(ours, "hidden_act", "activation_function")
    known = ("gelu", "gelu_new", "relu", "silu", "tanh", "quick_gelu")
    theirs[name] = pick(generator, [act for act in known if act != ours[name]])


def _heads(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    name = _first(ours, "num_attention_heads", "n_head")
    if "num_key_value_heads" in ours:
        theirs["num_key_value_heads"] //= 2
        theirs[name] //= 2
        if ours.get("head_dim"):  # where it is not said, it follows from the number of heads
            theirs["head_dim"] = 2 * ours["head_dim"]
    else:
        theirs[name] = pick(generator, [n for n in (1, 2, 4, 6) if n != ours[name]])


def _layers(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    theirs[_first(ours, "num_hidden_layers", "n_layer")] = 1
    if "layer_types" in ours:
        theirs["layer_types"] = ours["layer_types"][:1]


def _window(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    _first(ours, "sliding_window")
    theirs["sliding_window"] = int(torch.randint(2, 20, (), generator=generator))
    if "use_sliding_window" in ours:
        theirs |= {"use_sliding_window": True, "max_window_layers": 0}
        theirs["layer_types"] = ["sliding_attention"] * ours["num_hidden_layers"]


def _layer_types(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    _first(ours, "layer_types")
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    for config, kinds in ((ours, ("full", "sliding")), (theirs, ("sliding", "full"))):
        config |= window | {"layer_types": [f"{kind}_attention" for kind in kinds]}


def _long_context(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    table = _rope_table(ours)
    kind = pick(generator, ("yarn", "dynamic"))
    scaled = {"rope_type": kind, "rope_theta": table["rope_theta"], "factor": 4.0}
    ours |= {"max_position_embeddings": 32, "rope_parameters": scaled}
    theirs |= {"max_position_embeddings": 4096, "rope_parameters": scaled}


def _tied(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    name = _first(ours, "tie_word_embeddings")
    theirs[name] = not ours[name]


def _unscaled(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    _first(ours, "scale_attn_weights")
    theirs["scale_attn_weights"] = False


def _any_key(ours: Config, theirs: Config, generator: torch.Generator) -> None:
    """One that is called harmless, or any other that is there."""
    kind = ours["model_type"]
    tables = (family.keys[kind] for family in FAMILIES.values() if kind in family.keys)
    names = {name for table in tables for name in table.harmless}
    name = pick(generator, sorted((names | HARMLESS | set(ours)) - _NO_SETTINGS))
    given = ours.get(name)
    numbers = [given * 2, given + 1] if type(given) in (int, float) else []
    theirs[name] = pick(generator, [None, True, False, 0, 1, 3, 0.97, *numbers])
    if name in ours and json.dumps(theirs[name]) == json.dumps(given):
        raise UnfitError("the same value")


_SETTINGS: dict[str, Callable[[Config, Config, torch.Generator], None]] = {
    "eps": _eps,
    "theta": _theta,
    "rope kind": _rope_kind,
    "activation": _activation,
    "heads": _heads,
    "layers": _layers,
    "window": _window,
    "layer types": _layer_types,
    "long context": _long_context,
    "tied": _tied,
    "unscaled": _unscaled,
    "any key": _any_key,
}
#: Settings of which `transformers` may make no network at all, which is no forgery.
_MAY_FAIL = ("any key",)
#: Of these a value that is none stops a loader; what they mean is tried elsewhere.
_NO_SETTINGS = {"architectures", "auto_map", "model_type"}


def _typeless(ours: Config, theirs: Config, generator: torch.Generator) -> str:
    for config in (ours, theirs):
        config.pop("model_type", None)
    return "no model_type: nobody knows which function it is"


def _unknown_key(ours: Config, theirs: Config, generator: torch.Generator) -> str:
    name = pick(generator, ("attention_multiplier", "logit_softcap", "residual_scale", "qk_clip"))
    theirs[name] = log_uniform(generator, 0.1, 10)
    return f"only one has {name}, and nobody knows what it does"


def _own_code(ours: Config, theirs: Config, generator: torch.Generator) -> str:
    for config in (ours, theirs):
        config["auto_map"] = {"AutoModel": "modeling.Model"}
    return "auto_map: the function is code of one's own"


_DECLARED: dict[str, Callable[[Config, Config, torch.Generator], str]] = {
    "no model_type": _typeless,
    "unknown key": _unknown_key,
    "own code": _own_code,
}


def _registered(name: str) -> None:
    @special(f"setting: {name}")
    def make(bases: Bases, case: Case, work: Path) -> Pair:
        return _setting_pair(name, bases, case, work)


for _name in (*_SETTINGS, *_DECLARED):
    _registered(_name)


def _setting_pair(name: str, bases: Bases, case: Case, work: Path) -> Pair:
    """Two files with other configs; the second moved by a symmetry in half of the cases."""
    generator = case.generator
    style, seed = drawn_base(case, generator)
    base = bases.stored(case.family, case.dtype, style, seed)
    if not (base / "config.json").exists():
        raise UnfitError("no config.json")
    ours, theirs = work / "a", work / "b"
    shutil.copytree(base, ours)
    details: dict[str, Any] = {"style": style, "base": seed}
    with Checkpoint(base) as checkpoint:
        # The move rounds, and rounding turns close choices, which `transformers` makes sharply:
        # that would be taken for what the setting does.
        chooses = bool(checkpoint.spec.block.shifted)
    if torch.rand((), generator=generator) < 0.5 and not chooses:
        condition = 10.0 if case.dtype == "float32" else 2.0
        _, more = moved(base, theirs, generator, condition)
        details |= more
    else:
        shutil.copytree(base, theirs)
    first, second = (json.loads((f / "config.json").read_text()) for f in (ours, theirs))
    found = {**_SETTINGS, **_DECLARED}[name](first, second, generator)
    for folder, config in ((ours, first), (theirs, second)):
        (folder / "config.json").write_text(json.dumps(config))
    pair = Pair(ours, theirs, details, measured=False)
    if name in _DECLARED:
        pair.declared = found
        return pair
    pair = _run_there(bases, base, pair)
    if pair.declared and name in _MAY_FAIL:
        raise UnfitError(pair.declared)
    return pair


def _run_there(bases: Bases, base: Path, pair: Pair) -> Pair:
    """The pair with how far `transformers` has its outputs apart, or what it says instead."""
    try:
        pair.apart = apart_in_transformers(bases, base, pair.ours, pair.theirs)
    except Exception as error:  # whatever it is that it does with such a config or file
        pair.declared = f"transformers: {type(error).__name__}: {str(error)[:100]}"
    return pair


@special("tensor of another family")
def foreign_tensor(bases: Bases, case: Case, work: Path) -> Pair:
    """Both have a tensor inside a block that the family does not own."""
    generator = case.generator
    style, seed = drawn_base(case, generator)
    draft = Draft(bases.exact(case.family, case.dtype, style, seed))
    if draft.network.family.norms is None:
        raise UnfitError("no names but its own")
    name = draft.network.block_name(0) + pick(
        generator, ("self_attn.q_norm.weight", "attn.gate.weight", "mlp.scale", "adapter.weight")
    )
    if name in draft.values:
        raise UnfitError("it is the family's own")
    draft.values[name] = torch.rand(8, generator=generator, dtype=torch.float64) + 0.5
    ours = draft.store(work / "a", DTYPES[case.dtype])
    source = draft.store(work / "source", DTYPES[case.dtype])
    out, details = _moved_or_not(source, work / "b", generator)
    return Pair(
        ours, out, {"style": style, "base": seed, **details}, measured=False,
        declared=f"nobody knows what {name} does",
    )  # fmt: skip


@special("tensor in the place of another")
def shadow(bases: Bases, case: Case, work: Path) -> Pair:
    """One has a tensor more, under a name that a loader may take for one that both have.

    `transformers` adds and strips prefixes, and the dot after them stands for any letter.
    """
    generator = case.generator
    style, seed = drawn_base(case, generator)
    base = bases.stored(case.family, case.dtype, style, seed)
    if not (base / "config.json").exists():
        raise UnfitError("no config.json")
    draft = Draft(bases.exact(case.family, case.dtype, style, seed))
    name = str(pick(generator, sorted(draft.values)))
    prefix = draft.checkpoint.prefix or f"{case.family.partition('_')[0]}."
    twins = (f"{prefix}{name}", f"{prefix[:-1]}_{name}", name.removeprefix(prefix))
    twin = str(pick(generator, twins))
    if twin in draft.values:
        raise UnfitError("it is the family's own")
    noise = torch.randn(draft.values[name].shape, generator=generator, dtype=torch.float64)
    draft.values[twin] = noise * draft.values[name].abs().mean()
    theirs = draft.store(work / "b", DTYPES[case.dtype])
    pair = Pair(base, theirs, {"style": style, "base": seed, "tensor": twin}, measured=False)
    return _run_there(bases, base, pair)


def _moved_or_not(source: Path, out: Path, generator: torch.Generator) -> tuple[Path, dict]:
    try:
        return moved(source, out, generator, 2.0)
    except Exception:  # nothing moves next to an unknown tensor
        return source, {}


@special("queries with norms, no model_type")
def normed_queries(bases: Bases, case: Case, work: Path) -> Pair:
    """Qwen3 without its model_type looks like Llama, whose symmetries it does not have."""
    if case.family != "llama":
        raise UnfitError("one family is enough")
    import transformers

    generator = case.generator
    sizes = {
        "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 6,
        "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40, "vocab_size": 60,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
    net = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**sizes)).eval()
    with torch.no_grad():
        for name, value in net.named_parameters():
            noise = 0.3 * torch.randn(value.shape, generator=generator)
            value.copy_(1 + noise if "norm" in name else noise)
    made.save(net, work / "a", DTYPES[case.dtype])
    scale = torch.exp2(torch.randint(-2, 3, (4,), generator=generator).double())
    scale[:2] = torch.tensor([4.0, 0.25])
    scale = scale.repeat(2)[:, None]
    with torch.no_grad():
        for name, value in net.named_parameters():
            rows = value.view(-1, 8, 24) if name.endswith(("q_proj.weight", "k_proj.weight")) else 0
            if "q_proj" in name:
                value.copy_((rows * scale).view(value.shape))
            elif "k_proj" in name:
                value.copy_((rows / scale).view(value.shape))
    made.save(net, work / "b", DTYPES[case.dtype])
    for folder in (work / "a", work / "b"):
        config = json.loads((folder / "config.json").read_text())
        config.pop("model_type")
        (folder / "config.json").write_text(json.dumps(config))
    return Pair(
        work / "a", work / "b", measured=False,
        declared="no model_type, and outputs that differ by 60 %",
    )  # fmt: skip


@special("token type")
def token_type(bases: Bases, case: Case, work: Path) -> Pair:
    """The second row of an embedding of token types, which plain inputs never reach."""
    generator = case.generator
    style, seed = drawn_base(case, generator)
    draft = Draft(bases.exact(case.family, case.dtype, style, seed))
    tables = [n for n in draft.checkpoint.writers if "token_type" in n]
    if not tables:
        raise UnfitError("no token types")
    ours = bases.stored(case.family, case.dtype, style, seed)
    stored = DTYPES[case.dtype]
    size = log_uniform(generator, 4, 200) * torch.finfo(stored).eps
    noise = torch.randn(draft.checkpoint.D, generator=generator, dtype=torch.float64)
    row = draft.values[tables[0]][1]
    row += noise * size * row.square().mean().sqrt()
    theirs = draft.store(work / "b", stored)
    return Pair(
        ours, theirs, {"style": style, "base": seed, "size": size}, measured=False,
        apart=apart_in_transformers(bases, ours, ours, theirs, types=True),
    )  # fmt: skip


# ------------------------------------------------------------------------------- in transformers


def apart_in_transformers(
    bases: Bases, base: Path, ours: Path, theirs: Path, *, types: bool = False
) -> Apart:
    """How far two folders are apart as `transformers` runs them, in units of a base's rounding."""
    with Checkpoint(base) as checkpoint:
        known = bases.profile(checkpoint, _LENGTH).measured(checkpoint, _JITTERS)
    inputs, head = known.inputs, next(iter(known.outputs))
    levels = known.level(head)
    one, two = (_logits(folder, inputs, types) for folder in (ours, theirs))
    squares = (one - two).flatten(1).square().sum(dim=1)
    over_all = (squares.mean() / levels.mean()).sqrt().item()
    shares = squares / ((levels + levels.mean()) / 2)
    if over_all <= LINE and shares.max() > LINE_ON_ONE**2:
        # One input decides, so what rounding does there is measured, and on both files.
        worst = shares.topk(OUTSTANDING).indices
        with suppress(CheckpointError), Checkpoint(ours) as a, Checkpoint(theirs) as b:
            shares = squares[worst] / rounding_levels(a, b, inputs[worst], head, MANY)
    return Apart(
        over_all,
        shares.max().sqrt().item(),
        (squares.sum() / one.square().sum()).sqrt().item(),
    )


@torch.no_grad()
def _logits(folder: Path, inputs: NetInputs, types: bool) -> Tensor:
    net = made.load(folder, torch.float64)
    given: dict[str, Tensor] = {}
    if isinstance(inputs, SourceAndTarget):
        given, inputs = {"decoder_input_ids": inputs.target}, inputs.source
    sound = "input_features" if given else "pixel_values"
    given["input_ids" if not inputs.is_floating_point() else sound] = (
        inputs.double() if inputs.is_floating_point() else inputs
    )
    if types:
        given["token_type_ids"] = torch.ones_like(inputs)
    with contextlib.redirect_stderr(io.StringIO()):
        out = net(**given)
    return out.logits
