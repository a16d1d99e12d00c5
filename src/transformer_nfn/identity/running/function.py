"""The function of a checkpoint, in float64, one block in memory at a time.

It runs the canonical weights. That these compute what `transformers` computes from the file is
tested for each family; so a witness found here is one there. It can also run the weights as they
are stored, step by step as a loader does, for whom not all numbers are exact.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from transformer_nfn.checkpoints import Checkpoint, CheckpointError, WordPredictor
from transformer_nfn.identity.comparing.rounding import jittered_copies
from transformer_nfn.identity.elements.acting import canonical_block, folded_head, reading
from transformer_nfn.identity.elements.canonical import Norm
from transformer_nfn.identity.running.inputs import NetInputs, longest, parts_of
from transformer_nfn.space import (
    ACTIVATIONS,
    UnknownFunctionError,
    WeightBatch,
    layer_norm,
    rms_norm,
)

#: Roundings of a network are run side by side up to so many numbers, of weights and tokens.
_SIDE_BY_SIDE = 2**22


def check_runnable(checkpoint: Checkpoint) -> None:
    """Raise if the function needs something we do not know."""
    settings = checkpoint.settings
    for activation in (settings.activation, *checkpoint.poolers.values()):
        if activation not in ACTIVATIONS:
            raise CheckpointError(
                f"{checkpoint.path}: activation {activation!r:.40} is not one of "
                f"{', '.join(ACTIVATIONS)}, so its function cannot be run"
            )
    for rope in filter(None, (settings.rope, settings.local_rope)):
        try:
            rope.frequencies(checkpoint.spec.sizes["D_k"])
        except UnknownFunctionError as error:
            raise CheckpointError(f"{checkpoint.path}: {error}") from None
    if (missing := checkpoint.missing_writer) is not None:
        raise CheckpointError(f"{checkpoint.path} has no {missing}, so its function cannot be run")


@dataclass(frozen=True)
class OutputChoice:
    """Of very many outputs of a head some: a vocabulary for each token is most of the work.

    Attributes:
        seed: Of the choice.
        most: How many.
        kept: Some that must be among them.
    """

    seed: int
    most: int
    kept: tuple[int, ...] = ()

    def of(self, size: int) -> list[int] | None:
        """The numbers of those that are chosen; None if all are."""
        if size <= self.most:
            return None
        generator = torch.Generator().manual_seed(self.seed)
        order = torch.randperm(size, generator=generator).tolist()
        first = [number for number in self.kept if number < size]
        return list(dict.fromkeys(first + order))[: self.most]


@torch.no_grad()
def run(
    checkpoint: Checkpoint,
    inputs: NetInputs,
    blocks: Mapping[int, WeightBatch] | None = None,
    choice: OutputChoice | None = None,
) -> dict[str, Tensor]:
    """What a checkpoint gives for a batch of inputs, by head; hidden states where it has none.

    Args:
        checkpoint: The network.
        inputs: Token ids "s t", of BERT also ids and token types "s 2 t"; or images "s c p q", or a
            zoo's patches "s t p"; where there is an encoder, these with what it is given.
        blocks: Canonical weights that take the place of some blocks.
        choice: Of the outputs of a head; all if None.
    """
    return run_batches(checkpoint, [inputs], blocks, choice=choice)[0]


@torch.no_grad()
def run_batches(
    checkpoint: Checkpoint,
    batches: Sequence[NetInputs],
    blocks: Mapping[int, WeightBatch] | None = None,
    notes: "Notes | None" = None,
    *,
    as_stored: bool = False,
    choice: OutputChoice | None = None,
) -> list[dict[str, Tensor]]:
    """The same for several batches, of inputs of several lengths: each block is read once."""
    found = run_each([checkpoint], batches, blocks, notes, as_stored=as_stored, choice=choice)
    return [{head: out[0] for head, out in given.items()} for given in found]


@dataclass
class Notes:
    """What is seen on the way.

    Attributes:
        choices: What parts choose, in the order in which they do.
        margins: By how much each choice is clear.
    """

    choices: list[Tensor] = field(default_factory=list)
    margins: list[Tensor] = field(default_factory=list)


def run_roundings(
    checkpoint: Checkpoint,
    batches: Sequence[NetInputs],
    seeds: Iterable[int],
    choice: OutputChoice | None = None,
) -> Iterator[list[dict[str, Tensor]]]:
    """What a checkpoint gives after each of several roundings, small ones side by side.

    Args:
        checkpoint: The network.
        batches: Of inputs, as for `run`.
        seeds: Of the roundings.
        choice: As for `run`.
    """
    seeds = list(seeds)
    tokens = sum(len(inputs) * max(longest(inputs), 64) for inputs in batches)
    numbers = checkpoint.spec.weights + tokens * checkpoint.D
    count = max(1, _SIDE_BY_SIDE // numbers)
    for begin in range(0, len(seeds), count):
        some = seeds[begin : begin + count]
        with torch.no_grad():
            found = run_each(jittered_copies(checkpoint, some), batches, choice=choice)
        for place in range(len(some)):
            yield [{head: out[place] for head, out in given.items()} for given in found]


def run_each(
    checkpoints: Sequence[Checkpoint],
    batches: Sequence[NetInputs],
    blocks: Mapping[int, WeightBatch] | None = None,
    notes: Notes | None = None,
    *,
    as_stored: bool = False,
    choice: OutputChoice | None = None,
) -> list[dict[str, Float[Tensor, "n s ..."]]]:
    """The same for several networks of one shape and one config at a time.

    Args:
        checkpoints: The networks.
        batches: Of inputs, as for `run`.
        blocks: As for `run`.
        notes: Where to note what is seen on the way.
        as_stored: Run the weights as they are stored, not the canonical ones.
        choice: As for `run`.
    """
    found = []
    for last in _last_streams(checkpoints, batches, blocks or {}, notes, as_stored):
        given = [
            _heads(c, n, stream, as_stored, choice)
            for c, n, stream in zip(checkpoints, *last, strict=True)
        ]
        found.append({head: torch.stack([out[head] for out in given]) for head in given[0]})
    return found


@dataclass
class _Stream:
    """What is between two blocks, of one batch of inputs.

    Attributes:
        n: Plainly normalised, "n s t x".
        raw: As it is.
        memory: What an encoder made of its inputs, where there is one.
    """

    n: Tensor
    raw: Tensor
    memory: dict[str, Tensor]


def _last_streams(
    checkpoints: Sequence[Checkpoint],
    batches: Sequence[NetInputs],
    blocks: Mapping[int, WeightBatch],
    notes: Notes | None,
    as_stored: bool,
) -> list[tuple[Float[Tensor, "n s t x"], Float[Tensor, "n s t x"]]]:
    """Of each batch the stream after the last block, plainly normalised and as it is."""
    one = checkpoints[0]
    halves, eps = one.spec.block.halves, one.settings.eps
    shared = {
        name: torch.stack([c.files.read(c.name(stored)).double() for c in checkpoints])
        for name, stored in one.family.shared.items()
    }
    memories: list[dict[str, Tensor]] = [{} for _ in batches]
    if one.encoder is not None:
        encoders = [encoder for c in checkpoints if (encoder := c.encoder) is not None]
        sources = [parts_of(inputs)[0] for inputs in batches]
        made = (n for n, _ in _last_streams(encoders, sources, {}, notes, as_stored))
        if as_stored:
            last = [encoder.norm(encoder.last_norm) for encoder in encoders]
            made = (_affine(n, last) for n in made)
        memories = [{"memory": n} for n in made]
    norm = layer_norm if halves[0].centred else rms_norm
    streams = []
    for inputs, memory in zip(batches, memories, strict=True):
        given = parts_of(inputs)[-1]
        raw = torch.stack([embed(checkpoint, given) for checkpoint in checkpoints])
        n = norm(raw, eps)
        if one.family.first_norm:
            raw = _affine(n, [c.norm(c.stream_norms[0]) for c in checkpoints])
            n = n if one.gives_stream(one.reading_norms(0)[0]) else norm(raw, eps)
        streams.append(_Stream(n, raw, memory))
    for depth in range(one.settings.depth or one.blocks):
        number = min(depth, one.blocks - 1)  # of the block that it is
        other = blocks.get(number)
        read_block = Checkpoint.block if as_stored else canonical_block
        w = _weights([read_block(c, number) if other is None else other for c in checkpoints])
        readings = [reading(c, number) for c in checkpoints] if as_stored else []
        norms = list(zip(*readings, strict=True))
        for stream in streams:
            own, before = w | shared | stream.memory, stream.n
            for place, half in enumerate(halves):
                read = before if one.spec.block.parallel else stream.raw if half.raw else stream.n
                read = _affine(read, norms[place]) if as_stored else read
                if notes is not None and (chosen := half.part.choices(own, read)) is not None:
                    notes.choices.append(chosen)
                    if (margins := half.part.margins(own, read)) is not None:
                        notes.margins.append(margins)
                written = half.multiplier * half.part(own, read, number)
                stream.raw = stream.raw + written if half.skip else written
                stream.n = norm(stream.raw, eps)
                if one.post_norm:
                    after = one.family.norms[place] if one.family.norms else ""
                    after_norms = [c.norm(c.block_name(number) + after) for c in checkpoints]
                    stream.raw = _affine(stream.n, after_norms)
    return [(stream.n, stream.raw) for stream in streams]


def _weights(blocks: Sequence[WeightBatch]) -> dict[str, Float[Tensor, "n ..."]]:
    """The tensors of one block of each network."""
    if len(blocks) == 1:
        return {name: tensor[:, 0, 0] for name, tensor in blocks[0].tensors.items()}
    return {name: torch.cat([b[name][:, 0, 0] for b in blocks]) for name in blocks[0].tensors}


def embed(checkpoint: Checkpoint, inputs: Tensor) -> Float[Tensor, "s t x"]:
    """The stream before the first block."""
    tokens = None
    for step in checkpoint.family.embeddings:
        tokens = step(tokens, inputs, checkpoint.stored)
    assert tokens is not None
    return tokens


def _affine(n: Float[Tensor, "n s t x"], norms: Sequence[Norm]) -> Float[Tensor, "n s t x"]:
    """Each network with the scale and shift of its own norm."""
    scale, shift = (torch.stack(part)[:, None, None] for part in zip(*norms, strict=True))
    return n * scale + shift


def _heads(
    checkpoint: Checkpoint,
    n: Float[Tensor, "s t x"],
    stream: Float[Tensor, "s t x"],
    as_stored: bool,
    choice: OutputChoice | None,
) -> dict[str, Tensor]:
    """What the heads say of the last stream, plainly normalised and as it is."""
    norm = checkpoint.norm(checkpoint.last_norm)
    read = checkpoint.files.read
    if checkpoint.hidden_head:
        w1, b1, w2, b2 = (read(name).double() for name in checkpoint.hidden_head)
        return {"logits": F.relu(n.mean(dim=1) @ w1 + b1) @ w2 + b2}
    given = {}
    hidden = n * norm[0] + norm[1]
    if checkpoint.gives_hidden_states:
        given["hidden"] = stream if checkpoint.family.raw_hidden else hidden
        for name, (summary, names) in checkpoint.summaries.items():
            w = {own: read(stored).double() for own, stored in names.items()}
            given[name] = summary.function(hidden, w, checkpoint.settings)
    predictor = checkpoint.predictor
    read_again = {*checkpoint.poolers, *([] if predictor is None else [predictor.reads])}
    for name, head in checkpoint.heads.items():
        some = None if name in read_again else choice
        weight = _chosen(checkpoint, head.weight, some)
        bias = torch.zeros(len(weight)).double()
        if head.bias:
            bias = _chosen(checkpoint, head.bias, some)
        tokens = hidden if as_stored else n
        if not as_stored:
            weight, bias = folded_head(weight, bias, norm, checkpoint.settings.norm == "layer")
        tokens = tokens if head.token is None else tokens[:, head.token]
        given[name] = tokens @ weight.T + bias
        if head.after is not None:
            given[name] = head.after(given[name], checkpoint.settings)
    if predictor is not None:
        given["logits"] = _words(checkpoint, predictor, given.pop(predictor.reads), choice)
    for pooler, activation in checkpoint.poolers.items():
        if pooler not in given:
            continue
        pooled = ACTIVATIONS[activation](given.pop(pooler))
        reading = [name for name, of in checkpoint.pooled_heads.items() if of == pooler]
        # What other layers read is no output of its own.
        given |= {name: _linear(checkpoint, name, pooled) for name in reading} or {pooler: pooled}
    return given


def _chosen(checkpoint: Checkpoint, name: str, choice: OutputChoice | None) -> Tensor:
    """A tensor that has a row, or a number, for each output: those of the chosen ones."""
    files = checkpoint.files
    rows = None if choice is None else choice.of(files.entry(name).shape[0])
    return (files.read(name) if rows is None else files.rows(name, rows)).double()


def _linear(checkpoint: Checkpoint, name: str, x: Float[Tensor, "s x"]) -> Float[Tensor, "s o"]:
    weight, bias = (checkpoint.files.read(f"{name}.{part}").double() for part in ("weight", "bias"))
    return x @ weight.T + bias


def _words(
    checkpoint: Checkpoint, predictor: WordPredictor, hidden: Tensor, choice: OutputChoice | None
) -> Tensor:
    """Activation, LayerNorm, decoder."""
    shared, read = checkpoint.tied_decoder, checkpoint.files.read
    hidden = ACTIVATIONS[predictor.activation or checkpoint.settings.activation](hidden)
    scale, *shift = (read(name).double() for name in predictor.norm_tensors)
    hidden = sum(shift, layer_norm(hidden, predictor.eps or checkpoint.settings.eps) * scale)
    weight, bias = (f"{predictor.decoder}.{part}" for part in ("weight", "bias"))
    decoder = _chosen(checkpoint, shared.get(weight, weight), choice)
    return hidden @ decoder.T + _chosen(checkpoint, shared.get(bias, bias), choice)
