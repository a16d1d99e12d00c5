"""The networks that the contest starts from: each family, dtype and style, made once a process."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.material.families import ARCHITECTURES, make
from benchmarks.same.forging.draft import Draft, differentiable_run, remove
from benchmarks.same.forging.measure import INPUTS, Profile, draw
from tests.checkpoints import made
from transformer_nfn.checkpoints import Checkpoint

_OLD = (*made.FAMILIES, "gpt2-relu", "mistral", "zoo-paper", "zoo-residual", "zoo-text")
#: Every architecture that is read; those that are not old are made as `material.families` says.
FAMILIES = (*_OLD, *(name for name in ARCHITECTURES if name not in _OLD))
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
#: Different networks of each family, dtype and style.
SEEDS = 2
#: Coordinates of the stream that are larger than others in the style "outliers", and by how much.
_OUTLIERS, _LARGER = 2, 20.0

#: Words of a wide base: some hundred tokens reach few of them, the 6,144 that we measure on all.
_WORDS = 1000

_CHANGES = {
    "gpt2": {"n_positions": 64},
    "bert": {"max_position_embeddings": 64},
    "gpt2-relu": {"n_positions": 64, "activation_function": "relu"},
}


def rng(*key: object) -> torch.Generator:
    """A generator that depends on nothing but its key."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=7).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big"))


def pick(generator: torch.Generator, choices: object) -> object:
    """One of some choices."""
    listed = list(choices)  # type: ignore[call-overload]
    return listed[int(torch.randint(len(listed), (), generator=generator))]


def log_uniform(generator: torch.Generator, low: float, high: float) -> float:
    share = torch.rand((), generator=generator, dtype=torch.float64).item()
    return low * (high / low) ** share


# --------------------------------------------------------------------------------------- styles


def _plain(draft: Draft, generator: torch.Generator) -> None:
    pass


def _trained(draft: Draft, generator: torch.Generator) -> None:
    """Some steps of Adam towards random outputs: weights are no longer normal numbers."""
    leaves = {n: v.clone().requires_grad_(v.is_floating_point()) for n, v in draft.values.items()}
    weights = [leaf for leaf in leaves.values() if leaf.requires_grad]
    optimizer = torch.optim.Adam(weights, lr=0.02)
    inputs = draw(draft.checkpoint, 8, 12, 1)
    plain = draft.view()
    plain.files._values = leaves
    target = None
    for _ in range(15):
        out = torch.cat([o.flatten() for o in differentiable_run(plain, inputs).values()])
        if target is None:
            target = torch.randn(out.shape, generator=generator, dtype=out.dtype)
        loss = (out - 2 * target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    draft.values = {name: leaf.detach() for name, leaf in leaves.items()}


def _heavy(draft: Draft, generator: torch.Generator) -> None:
    """Student's t with three degrees of freedom."""
    for name, value in matrices(draft).items():
        normal = torch.randn((4, *value.shape), generator=generator, dtype=torch.float64)
        t = normal[0] / normal[1:].square().mean(dim=0).sqrt()
        draft.values[name] = t.clamp(-20, 20) * value.square().mean().sqrt() / 1.5


def _outliers(draft: Draft, generator: torch.Generator) -> None:
    """Some coordinates of the stream are much larger than others, as in large trained nets."""
    D = draft.checkpoint.D
    factor = torch.ones(D, dtype=torch.float64)
    factor[torch.randperm(D, generator=generator)[:_OUTLIERS]] = _LARGER
    for name, writer in draft.checkpoint.writers.items():
        axes = writer.axes.split()
        shape = [D if axis == "x" else 1 for axis in axes]
        draft.values[name] = draft.values[name] * factor.view(shape)
    # Where a norm stands after a part, its gains say what reaches the stream.
    parts = [half.part for half in draft.spec.block.halves]
    normed = {name for part in parts if getattr(part, "after", False) for name in part.writers}
    for number in range(draft.blocks):
        block = draft.block(number)
        for name in block.keys() - normed:
            if is_writer(draft, name):
                block[name] = block[name] * factor
        draft.put(number, block)


def _zeros(draft: Draft, generator: torch.Generator) -> None:
    """Biases are 0, norms 1 and 0, the first words are padding, a tenth of the weights is gone."""
    for name, value in draft.values.items():
        if value.is_floating_point() and value.dim() == 1:
            norm = name.endswith(".weight")
            draft.values[name] = torch.ones_like(value) if norm else torch.zeros_like(value)
    words, writer = next(iter(draft.checkpoint.writers.items()), (None, None))
    if words and writer.axes == "t x" and len(draft.values[words]) > draft.checkpoint.D:
        draft.values[words][:2] = 0
    for name, value in matrices(draft).items():
        kept = torch.rand(value.shape, generator=generator) > 0.1
        draft.values[name] = torch.where(kept, value, 0.0)


#: A style for weights that few inputs reach: a larger vocabulary and more positions.
WIDE = "wide"

STYLES: dict[str, Callable[[Draft, torch.Generator], None]] = {
    "plain": _plain,
    "trained": _trained,
    "heavy": _heavy,
    "outliers": _outliers,
    "zeros": _zeros,
}


def matrices(draft: Draft) -> dict[str, Tensor]:
    """All tensors with two axes or more that hold weights."""
    return {n: v for n, v in draft.values.items() if v.is_floating_point() and v.dim() > 1}


def is_writer(draft: Draft, name: str) -> bool:
    """Whether a declared tensor writes into the stream: that is its last axis."""
    return draft.spec.block.tensors[name][-1].label == "x"


# ---------------------------------------------------------------------------------------- bases


class Bases:
    """Networks in a folder, and what they say, each made when it is first asked for."""

    def __init__(self, home: Path, inputs: int = INPUTS) -> None:
        self.home = home
        self._inputs = inputs
        self._profiles: dict[tuple[str, int], Profile] = {}

    def stored(self, family: str, dtype: str, style: str, seed: int) -> Path:
        """A base in its dtype."""
        folder = self.home / f"{family}-{dtype}-{style}-{seed}"
        if not folder.exists():
            self._draft(family, style, seed).store(folder, DTYPES[dtype])
        return folder

    def exact(self, family: str, dtype: str, style: str, seed: int) -> Path:
        """The numbers of a stored base, in float64: what is made of them is rounded once."""
        folder = self.home / f"{family}-{dtype}-{style}-{seed}-exact"
        if not folder.exists():
            Draft(self.stored(family, dtype, style, seed)).store(folder, torch.float64)
        return folder

    def full(self, family: str, style: str, seed: int) -> Path:
        """A base in float64 that no dtype has rounded."""
        folder = self.home / f"{family}-full-{style}-{seed}"
        if not folder.exists():
            self._draft(family, style, seed).store(folder, torch.float64)
        return folder

    def _draft(self, family: str, style: str, seed: int) -> Draft:
        folder = _made(self.home / f"raw-{family}-{style}-{seed}", family, seed, style == WIDE)
        draft = Draft(folder)
        STYLES.get(style, _plain)(draft, rng("style", family, style, seed))
        remove(folder)
        return draft

    def profile(self, checkpoint: Checkpoint, length: int) -> Profile:
        """What a base says on the inputs on which a pair is measured; remembered."""
        key = str(checkpoint.path), length
        if key not in self._profiles:
            if len(self._profiles) > 200:
                self._profiles.pop(next(iter(self._profiles)))
            self._profiles[key] = Profile(checkpoint, draw(checkpoint, self._inputs, length, 0))
        return self._profiles[key]


def _made(folder: Path, family: str, seed: int, wide: bool) -> Path:
    if family.startswith("zoo"):
        block = "residual" if family == "zoo-residual" else "paper"
        made.zoo_net(folder / "model.safetensors", block, seed, text=family == "zoo-text")
        return folder
    if family not in _OLD:
        return make(family, folder, dtype=torch.float32, seed=seed)
    if family == "mistral":
        return made.save(_mistral(seed), folder)
    return made.save(made.model(family.partition("-")[0], seed, **_CHANGES.get(family, {})), folder)


def _mistral(seed: int) -> object:
    """Llama's tensors under another name, heads wider than D / heads, one key head for each two."""
    import transformers

    config = transformers.MistralConfig(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=40,
        vocab_size=60,
        sliding_window=None,
        bos_token_id=1,
        eos_token_id=2,
    )
    torch.manual_seed(seed)
    net = transformers.MistralForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in net.named_parameters():
            noise = 0.3 * torch.randn(value.shape, generator=generator)
            value.copy_(1 + noise if "norm" in name else noise)
    return net
