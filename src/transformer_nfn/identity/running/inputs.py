"""Random inputs on which two networks are compared."""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from transformer_nfn.checkpoints import Checkpoint
from transformer_nfn.space import Inputs, Patches, Positions, Sound, Table, TokenTypes, Words

#: Tokens of a sequence: positions tell far tokens apart, a wrong pairing of RoPE's coordinates
#: shows only after some twenty.
TOKENS = 64
#: Sequences, images or sets of patches of one comparison.
SEQUENCES = 16
#: Tokens of a sequence in which no word occurs twice.
EACH = 24
#: Sets of vectors whose first is 0.
_ZEROS = 2
#: Multiplications that one run of a network may cost; larger networks see fewer sequences.
_COST = 3e11
#: Numbers of outputs that are in memory at a time, 1 GB.
NUMBERS = 2**27


@dataclass(frozen=True)
class SourceAndTarget:
    """What an encoder and its decoder are given, input by input.

    Attributes:
        source: Of the encoder.
        target: Token ids of the decoder, "s t".
    """

    source: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)

    def __getitem__(self, rows: int | slice | Tensor) -> "SourceAndTarget":
        return SourceAndTarget(self.source[rows], self.target[rows])


#: What networks are run on, as `function.run` takes it.
NetInputs = Tensor | SourceAndTarget


def parts_of(inputs: NetInputs) -> tuple[Tensor, ...]:
    """What each network is given, the encoder first."""
    if isinstance(inputs, SourceAndTarget):
        return inputs.source, inputs.target
    return (inputs,)


def longest(inputs: NetInputs) -> int:
    """Tokens of an input, or frames of a sound."""
    return max(part.shape[-1] for part in parts_of(inputs))


def split(inputs: NetInputs, size: int) -> Iterator[NetInputs]:
    """So many at a time."""
    return (inputs[begin : begin + size] for begin in range(0, len(inputs), size))


def fresh_seed() -> int:
    """A seed that nobody knew before: whoever knew it could hide in what its inputs do not see."""
    return secrets.randbits(48)


def draw_inputs(
    ours: Checkpoint,
    theirs: Checkpoint,
    *,
    seed: int,
    tokens: tuple[int, ...] = (),
    count: int | None = None,
    length: int = TOKENS,
) -> NetInputs:
    """Random inputs that both understand, as `function.run` takes them.

    Args:
        ours: The first network.
        theirs: The second.
        seed: Of the inputs.
        tokens: Words that must occur, one in each of the first sequences.
        count: How many sequences, images or sets of patches; as many as the network's size allows
            if None.
        length: Of a sequence, where nothing else says it.
    """
    generator = torch.Generator().manual_seed(seed)
    family, settings = ours.family, ours.settings
    if family.inputs is Inputs.IMAGES:
        size = settings.size("image")
        images = (count or SEQUENCES, settings.size("colours"), size, size)
        return torch.randn(images, generator=generator)
    if family.inputs is Inputs.VECTORS:
        width = ours.files.entry(next(iter(ours.writers))).shape[0] if ours.writers else ours.D
        vectors = (count or 4 * SEQUENCES, settings.size("tokens"), width)
        drawn = torch.randn(vectors, generator=generator)
        drawn[:_ZEROS, 0] = 0  # a token of zeros sees only what is added to it
        return drawn
    if family.inputs is Inputs.SOUND:
        return torch.randn((count or SEQUENCES, *_frames(ours)), generator=generator)
    words = _rows(Words, ours, theirs)
    length = min(length, _rows(Positions, ours, theirs) or length)
    count = count or _affordable(ours, length)
    ids = torch.randint(0, words, (count, length), generator=generator)
    given = torch.randint(0, words, ids.shape, generator=generator)  # to an encoder
    for row, token in enumerate(token for token in tokens if token < words):
        place = row % count, (row // count) % length
        ids[place] = given[place] = token
    if (encoder := ours.encoder) is not None:
        if encoder.family.inputs is Inputs.SOUND:
            given = torch.randn((count, *_frames(encoder)), generator=generator)
        return SourceAndTarget(given, ids)
    if not (types := _rows(TokenTypes, ours, theirs)):
        return ids
    drawn = torch.randint(0, types, ids.shape, generator=generator)
    drawn[: count // 2] = 0  # as most people use it
    return torch.stack([ids, drawn], dim=1)


def draw_every_word(checkpoint: Checkpoint, seed: int) -> Tensor:
    """Sequences in which each word occurs once, or as many as there is time for."""
    generator = torch.Generator().manual_seed(seed)
    words = _rows(Words, checkpoint, checkpoint)
    count = int(min(-(-words // EACH), max(2, _COST / _cost(checkpoint, EACH))))
    order = torch.randperm(words, generator=generator)
    return order.repeat(-(-count * EACH // words))[: count * EACH].view(count, EACH)


def _rows(kind: type[Table], ours: Checkpoint, theirs: Checkpoint) -> int:
    """Rows that the tables of a kind have in both networks; 0 if there are none."""
    return min(
        (
            checkpoint.stored.shape(step.name)[0]
            - (step.first_row(checkpoint.stored) if isinstance(step, Positions) else 0)
            for checkpoint in (ours, theirs)
            for step in checkpoint.family.embeddings
            if isinstance(step, kind)
        ),
        default=0,
    )


def _frames(encoder: Checkpoint) -> tuple[int, int]:
    """Numbers of a frame, and frames of a sound: two for each position."""
    kernel = next(step.first for step in encoder.family.embeddings if isinstance(step, Sound))
    return encoder.stored.shape(f"{kernel}.weight")[1], 2 * _rows(Positions, encoder, encoder)


def _affordable(checkpoint: Checkpoint, length: int) -> int:
    """Sequences of a length that a network of this size is run on."""
    wanted = max(1, SEQUENCES * TOKENS // length)
    return int(min(wanted, max(2, _COST / _cost(checkpoint, length))))


def pool_size(checkpoint: Checkpoint, length: int, most: int) -> int:
    """Inputs that a network can be run on to choose among them: there is time and memory for them.

    Args:
        checkpoint: The network.
        length: Of a sequence.
        most: More are not wanted.
    """
    tokens = _tokens(checkpoint, length)
    room = min(_COST / _cost(checkpoint, length), NUMBERS / (tokens * widest(checkpoint)))
    return int(min(most, max(2, room)))


def widest(checkpoint: Checkpoint) -> int:
    """Numbers that a network says of a token, or has of it between two blocks."""
    heads = (checkpoint.files.entry(head.weight).shape[0] for head in checkpoint.heads.values())
    return max(checkpoint.D, *heads, 0)


def _cost(checkpoint: Checkpoint, length: int) -> int:
    """Multiplications of one input, roughly."""
    size = sum(prod(entry.shape) for entry in checkpoint.files.entries.values())
    return size * _tokens(checkpoint, length)


def _tokens(checkpoint: Checkpoint, length: int) -> int:
    """Of one input; of a sequence as many as it is long."""
    settings = checkpoint.settings
    match checkpoint.family.inputs:
        case Inputs.IMAGES:
            patches = next(s for s in checkpoint.family.embeddings if isinstance(s, Patches))
            side = settings.size("image") // checkpoint.stored.shape(patches.weight)[-1]
            return side**2
        case Inputs.VECTORS:
            return settings.size("tokens")
        case Inputs.SOUND:
            return _rows(Positions, checkpoint, checkpoint)
    return length + (_tokens(checkpoint.encoder, length) if checkpoint.encoder is not None else 0)
