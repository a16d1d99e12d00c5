"""The function of a checkpoint, in float64, one block in memory at a time.

It runs the canonical weights. That these compute what `transformers` computes from the file is
tested for each family; so a witness found here is one there.
"""

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from transformer_nfn.checkpoints import Checkpoint, CheckpointError, Rope
from transformer_nfn.identity.elements.acting import canonical_block, folded_head
from transformer_nfn.identity.elements.canonical import Norm
from transformer_nfn.space import WeightBatch, sine_positions

#: By the names of config.json; where it has several for one, by that which settings have.
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
}


def check_runnable(checkpoint: Checkpoint) -> None:
    """Raise if the function needs something we do not know."""
    settings = checkpoint.settings
    for activation in (settings.activation, settings.flag("pooler_act") or "tanh"):
        if activation not in ACTIVATIONS:
            raise CheckpointError(
                f"{checkpoint.path}: activation {activation!r:.40} is not one of "
                f"{', '.join(ACTIVATIONS)}, so its function cannot be run"
            )
    if settings.rope is not None:
        frequencies(settings.rope, checkpoint.spec.sizes["D_k"])
    for writer in checkpoint.family.writers if checkpoint.writers else ():
        if checkpoint.name(writer.name) not in checkpoint.writers:
            raise CheckpointError(
                f"{checkpoint.path} has no {writer.name}, so its function cannot be run"
            )


@torch.no_grad()
def run(
    checkpoint: Checkpoint, inputs: Tensor, blocks: Mapping[int, WeightBatch] | None = None
) -> dict[str, Tensor]:
    """What a checkpoint gives for a batch of inputs, by head; hidden states where it has none.

    Args:
        checkpoint: The network.
        inputs: Token ids "s t", of BERT also ids and token types "s 2 t"; or images "s c p q", or a
            zoo's patches "s t p".
        blocks: Canonical weights that take the place of some blocks.
    """
    settings, family = checkpoint.settings, checkpoint.family
    centred = settings.norm == "layer"
    stream = embed(checkpoint, inputs)
    if family.post_norm:
        name, _ = checkpoint.reading_norms(0)
        n = normalised(stream, settings.eps, centred)
        stream = _affine(n, checkpoint.norm(name))
    for number in range(checkpoint.blocks):
        given = (blocks or {}).get(number)
        block = canonical_block(checkpoint, number) if given is None else given
        if family.post_norm:
            after, last = (
                checkpoint.norm(checkpoint.block_name(number) + norm) for norm in family.norms or ()
            )
            written = attend(checkpoint, block, n, settings.window(number))
            n = normalised(stream + written, settings.eps, centred)
            stream = _affine(n, after)
            n = normalised(stream + perceive(checkpoint, block, n), settings.eps, centred)
            stream = _affine(n, last)
            continue
        n = normalised(stream, settings.eps, centred)
        written = attend(checkpoint, block, n, settings.window(number))
        stream = stream + written if family.skip else written
        written = perceive(checkpoint, block, normalised(stream, settings.eps, centred))
        stream = stream + written if family.skip else written
    if not family.post_norm:
        n = normalised(stream, settings.eps, centred)
    return _heads(checkpoint, n)


def normalised(x: Float[Tensor, "s t x"], eps: float, centred: bool) -> Float[Tensor, "s t x"]:
    """LayerNorm, or RMSNorm, without scale and shift."""
    if centred:
        x = x - x.mean(dim=-1, keepdim=True)
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + eps)


def embed(checkpoint: Checkpoint, inputs: Tensor) -> Float[Tensor, "s t x"]:
    """The stream before the first block."""
    name = checkpoint.family.name
    if name == "vit":
        return _embed_image(checkpoint, inputs)
    if name.startswith("zoo"):
        tokens = inputs.double()
        if checkpoint.writers:
            weight, bias = (checkpoint.files.read(name).double() for name in checkpoint.writers)
            tokens = tokens @ weight + bias
        return tokens + sine_positions(tokens.shape[1], checkpoint.D).double()
    words, *others = checkpoint.writers
    types = torch.zeros((), dtype=torch.long)
    if inputs.dim() == 3:
        inputs, types = inputs.unbind(1)
    stream = _word_rows(checkpoint, words, inputs)
    if name in ("gpt2", "bert"):
        stream = stream + checkpoint.files.slice(others[0], 0, inputs.shape[1]).double()
    if name == "bert":
        stream = stream + checkpoint.files.read(others[1]).double()[types]
    return stream


def _word_rows(
    checkpoint: Checkpoint, name: str, ids: Int[Tensor, "s t"]
) -> Float[Tensor, "s t x"]:
    """Rows of an embedding: each that occurs is read once, or all if that is less work."""
    found, place = ids.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    if 4 * len(found) >= checkpoint.files.entry(name).shape[0]:
        return checkpoint.files.read(name).double()[ids]
    return checkpoint.files.rows(name, found.tolist()).double()[place]


def _embed_image(checkpoint: Checkpoint, images: Tensor) -> Float[Tensor, "s t x"]:
    weight, bias, first, positions = (
        checkpoint.files.read(name).double() for name in checkpoint.writers
    )
    patches = F.conv2d(images.double(), weight, bias, stride=weight.shape[-1])
    tokens = patches.flatten(2).transpose(1, 2)  # s t x
    return torch.cat([first.expand(len(tokens), -1, -1), tokens], dim=1) + positions


def attend(
    checkpoint: Checkpoint,
    block: WeightBatch,
    n: Float[Tensor, "s t x"],
    window: int | None = None,
) -> Float[Tensor, "s t x"]:
    """What a canonical block's attention writes.

    Args:
        checkpoint: The network.
        block: Its weights.
        n: The normalised stream.
        window: How many tokens back a token sees; all if None.
    """
    Q, K, V, O, bias = (block[name][0, 0, 0] for name in ("Q", "K", "V", "O", "bO"))
    if Q.dim() == 3:
        Q, O = Q.unsqueeze(1), O.unsqueeze(1)
    z = torch.cat([n, torch.ones_like(n[..., :1])], dim=-1)
    q = torch.einsum("stz,gmzk->sgmtk", z, Q)
    k, v = (torch.einsum("stz,gzk->sgtk", z, W) for W in (K, V))
    if checkpoint.settings.rope is not None:
        angles = frequencies(checkpoint.settings.rope, Q.shape[-1])
        q, k = turned(q, angles), turned(k, angles)
    scores = torch.einsum("sgmtk,sguk->sgmtu", q, k) / math.sqrt(Q.shape[-1])
    scores = scores.masked_fill(~_sees(n.shape[1], checkpoint.settings.causal, window), -torch.inf)
    seen = torch.einsum("sgmtu,sguv->sgmtv", scores.softmax(dim=-1), v)
    return torch.einsum("sgmtv,gmvx->stx", seen, O) + bias


def _sees(tokens: int, causal: bool, window: int | None) -> Bool[Tensor, "t u"]:
    """Which tokens (columns) each token (row) sees; `transformers` counts a window so.

    Of the w tokens of a window one is the token itself where it sees only earlier ones; where it
    sees both ways it has w on either side.
    """
    place = torch.arange(tokens)
    back = place[:, None] - place
    if causal:
        return (back >= 0) & (back < (tokens if window is None else window))
    return back.abs() <= (tokens if window is None else window)


def perceive(
    checkpoint: Checkpoint, block: WeightBatch, n: Float[Tensor, "s t x"]
) -> Float[Tensor, "s t x"]:
    """What a canonical block's MLP writes."""
    act = ACTIVATIONS[checkpoint.settings.activation]
    w = {name: block[name][0, 0, 0] for name in block}
    if "gate" in w:
        z = torch.cat([n, torch.ones_like(n[..., :1])], dim=-1)
        hidden = act(z @ w["gate"]) * (z @ w["up"].squeeze(-1))
        return hidden @ w["down"].squeeze(1) + w["bdown"]
    D_A, D = w["bA"].shape[0], n.shape[-1]
    hidden = act(n @ w["A"].reshape(D, D_A) + w["bA"].reshape(D_A))
    return hidden @ w["B"].reshape(D_A, D) + w["bB"]


def frequencies(rope: Rope, width: int) -> Float[Tensor, " j"]:
    """The angle that each pair of coordinates turns by from one token to the next.

    Raises:
        CheckpointError: For a kind of rotary positions that we do not know.
    """
    angle = rope.theta ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if "partial_rotary_factor" in dict(rope.options):
        raise CheckpointError("rotary positions of only a part of the coordinates are not known")
    if rope.kind == "default":
        return angle
    if rope.kind == "linear":
        return angle / _option(rope, "factor")
    if rope.kind == "llama3":
        # Waves longer than the first context are slowed, short ones kept, those between mixed.
        length = _option(rope, "original_max_position_embeddings") * angle / (2 * math.pi)
        low, high = _option(rope, "low_freq_factor"), _option(rope, "high_freq_factor")
        keep = ((length - low) / (high - low)).clamp(0, 1)
        return keep * angle + (1 - keep) * angle / _option(rope, "factor")
    raise CheckpointError(f"rotary positions of kind {rope.kind!r:.40} are not known")


def _option(rope: Rope, name: str) -> float:
    value = dict(rope.options).get(name)
    if not isinstance(value, float):
        raise CheckpointError(f"rotary positions of kind {rope.kind} need a number {name}")
    return value


def turned(x: Float[Tensor, "... t k"], angles: Float[Tensor, " j"]) -> Float[Tensor, "... t k"]:
    """Rotary positions: the pair (j, j + D_k/2) of token t turned by t times its angle."""
    phase = torch.arange(x.shape[-2], dtype=torch.float64)[:, None] * angles  # t j
    re, im = x.chunk(2, dim=-1)
    cos, sin = phase.cos(), phase.sin()
    return torch.cat([re * cos - im * sin, re * sin + im * cos], dim=-1)


def _affine(n: Tensor, norm: Norm) -> Tensor:
    return n * norm[0] + norm[1]


def _heads(checkpoint: Checkpoint, n: Float[Tensor, "s t x"]) -> dict[str, Tensor]:
    norm = checkpoint.norm(checkpoint.last_norm)
    read = checkpoint.files.read
    if checkpoint.hidden_head:
        w1, b1, w2, b2 = (read(name).double() for name in checkpoint.hidden_head)
        return {"logits": F.relu(n.mean(dim=1) @ w1 + b1) @ w2 + b2}
    given = {}
    if checkpoint.gives_hidden_states:
        given["hidden"] = _affine(n, norm)
    for name, head in checkpoint.heads.items():
        weight = read(head.weight).double()
        bias = read(head.bias).double() if head.bias else torch.zeros(len(weight)).double()
        folded, constant = folded_head(weight, bias, norm, checkpoint.settings.norm == "layer")
        tokens = n[:, 0] if _reads_first(checkpoint, name) else n
        given[name] = tokens @ folded.T + constant
    if (transform := "cls.predictions.transform.dense") in given:
        given["logits"] = _bert_words(checkpoint, given.pop(transform))
    pooler = checkpoint.name("pooler.dense")
    if pooler in given:
        pooled = ACTIVATIONS[checkpoint.settings.flag("pooler_act") or "tanh"](given[pooler])
        # What other layers read is no output of its own.
        given = {n: out for n, out in given.items() if n != pooler or not checkpoint.pooled_heads}
        for name in checkpoint.pooled_heads or [pooler]:
            given[name] = pooled if name == pooler else _linear(checkpoint, name, pooled)
    return given


def _reads_first(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a head reads the first token only: poolers, and a ViT's classifier."""
    return name.endswith("pooler.dense") or (checkpoint.family.name, name) == ("vit", "classifier")


def _linear(checkpoint: Checkpoint, name: str, x: Float[Tensor, "s x"]) -> Float[Tensor, "s o"]:
    weight, bias = (checkpoint.files.read(f"{name}.{part}").double() for part in ("weight", "bias"))
    return x @ weight.T + bias


def _bert_words(checkpoint: Checkpoint, hidden: Tensor) -> Tensor:
    """BERT's head for masked words: dense, activation, LayerNorm, decoder."""
    shared, read = checkpoint.tied_decoder, checkpoint.files.read
    hidden = ACTIVATIONS[checkpoint.settings.activation](hidden)
    name = "cls.predictions.transform.LayerNorm"
    scale, shift = (read(f"{name}.{part}").double() for part in ("weight", "bias"))
    hidden = normalised(hidden, checkpoint.settings.eps, True) * scale + shift
    weight, bias = (f"cls.predictions.decoder.{part}" for part in ("weight", "bias"))
    return (
        hidden @ read(shared.get(weight, weight)).double().T + read(shared.get(bias, bias)).double()
    )
