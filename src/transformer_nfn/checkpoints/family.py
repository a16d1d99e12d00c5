"""What a family of checkpoints is: tables of the names on disk and what each tensor does.

A family is data. `Matrix` says where the tensors of a block are, `Writer` what else writes into the
residual stream, `Reader` what else reads from it; all other tensors do not touch the stream.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from transformer_nfn.checkpoints.gguf.table import Gguf
from transformer_nfn.checkpoints.settings.keys import Keys
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Block, Embedding, FixedPositions, Inputs


@dataclass(frozen=True)
class Matrix:
    """One tensor of a block on disk, and its bias.

    Attributes:
        weight: Its name after the block's. Where each expert has a tensor of its own, a pair of
            braces stands for its number, and the first of the axes is theirs.
        tensors: The declared tensors in it; three for GPT-2's fused c_attn.
        axes: Its axes on disk, in order, one letter each as declared. A Linear is [out, in],
            ``"h k x"`` for queries; GPT-2's Conv1D is [in, out]. Where several tensors are one on
            disk, brackets say how they stand side by side: ``"h (k + k + v) x"`` has all three of
            a head together, ``"x (h k + h k + h v)"`` all queries before all keys.
        bias: The bias' name on disk; it may be absent.
        bias_tensor: The declared tensor the bias is. None: the last input row of `tensors`.
        offset: What is added to the numbers on disk.
    """

    weight: str
    tensors: tuple[str, ...]
    axes: str
    bias: str | None = None
    bias_tensor: str | None = None
    offset: float = 0.0

    def names(self, experts: int) -> list[str]:
        """What the weight is called, for each expert if each has one."""
        return [self.weight.format(e) for e in range(experts)] if self.spread else [self.weight]

    @property
    def spread(self) -> bool:
        """Whether each expert has a tensor of its own."""
        return "{}" in self.weight

    @property
    def single(self) -> "Matrix":
        """The matrix as one tensor of the file has it."""
        return replace(self, axes=self.axes.partition(" ")[2]) if self.spread else self


def linear(name: str, tensors: str, axes: str, bias_tensor: str | None = None) -> Matrix:
    """A layer with the usual `.weight` and `.bias`."""
    return Matrix(f"{name}.weight", tuple(tensors.split()), axes, f"{name}.bias", bias_tensor)


@dataclass(frozen=True)
class Writer:
    """A tensor outside the blocks whose axis `x` is the residual stream it writes into."""

    name: str
    axes: str


@dataclass(frozen=True)
class Reader:
    """A layer outside the blocks that reads the stream after the last norm: Linear, [out, in].

    Attributes:
        name: Its weight is `name.weight`, its bias, if there is one, `name.bias`.
        own: The name stands without the family's prefix, as heads do.
        tied: The embedding it shares its weight with where the file has none of its own.
        bias: Whether it may have a bias, or only in models of these names.
        token: It reads only the token at this place; all if None.
        after: What is made of its output, for the settings of a file; nothing if None.
    """

    name: str
    own: bool = False
    tied: str | None = None
    bias: bool | tuple[str, ...] = True
    token: int | None = None
    after: Callable[[Tensor, Settings], Tensor] | None = None


@dataclass(frozen=True)
class WordPredictor:
    """What makes words of a reader's output: activation, norm, decoder.

    Attributes:
        reads: The reader, a layer of its own name in the file.
        norm: The norm after its activation.
        decoder: The layer that gives a number for each word.
        tied: The embedding whose rows are the decoder's, where it has none of its own.
        bias: Where the decoder's bias stands, where it has none of its own.
        activation: Before the norm; that of the MLPs if None.
        eps: Of the norm; that of all others if None.
        shift: Whether the norm has a shift beside its scale.
    """

    reads: str
    norm: str
    decoder: str
    tied: str
    bias: str
    activation: str | None = None
    eps: float | None = None
    shift: bool = True

    @property
    def norm_tensors(self) -> tuple[str, ...]:
        """The scale of its norm, and the shift if it has one."""
        return (f"{self.norm}.weight", *([f"{self.norm}.bias"] if self.shift else []))

    @property
    def tensors(self) -> tuple[str, ...]:
        """All that a file may have of it beside the reader."""
        decoder = (f"{self.decoder}.{part}" for part in ("weight", "bias"))
        return (*self.norm_tensors, *decoder, self.bias)


@dataclass(frozen=True)
class Summary:
    """What is made of all hidden states after the last norm; no symmetry moves what it reads.

    Attributes:
        name: What it is called.
        tensors: What it reads, by name, and the axes: ``"3x x"`` for three times the stream's size
            and once, a number for itself, any other letter for whatever size it has.
        function: Of hidden states "s t x" and these tensors.
        own: Their names stand without the family's prefix.
    """

    name: str
    tensors: Mapping[str, str]
    function: Callable[[Tensor, Mapping[str, Tensor], Settings], Tensor]
    own: bool = False


@dataclass(frozen=True)
class Family:
    """A family of checkpoints.

    Attributes:
        name: What it is called.
        keys: For each model_type of config.json what its keys do.
        prefixes: What may stand before all names but those of heads.
        probes: Names, after a prefix, that files of this family have, and others not all of.
        block: The name of block i, ``"h.{}."``; without a place for i there is one block, which all
            depths share, and `Settings.depth` says how many these are.
        block_of: The block's parts, and where its norms stand, for the settings of a file.
        matrices: The tensors of a block.
        norms: The norms of a block: before (or, post-norm, after) each of its halves.
        norm_shifts: Norms may have a shift beside their scale.
        norm_offset: What is added to the scale that a file has for a norm.
        first_norm: The norm of the embeddings, whose output is the stream.
        first_norm_is_read: Attention of the first block reads that, and has no norm of its own.
        last_norm: The norm before the readers, pre-norm only.
        embeddings: What makes tokens of the inputs, step by step.
        readers: Everything else that reads from it.
        predictor: What makes words of what a reader gives, if there is such a reader.
        labels: Readers with a row for each label of config.json.
        poolers: Readers whose output goes through an activation: that, or None for the MLPs'.
        pooled: Layers that read what a pooler gives, not the stream, and which pooler.
        summaries: What else is given where hidden states are.
        ignored: Endings of names that are no weights.
        refused: Beginnings of names of tensors of networks that are not read.
        output_bias: The attention has an output bias, or a place for one.
        hidden_head: Weight and bias, twice, of a head Linear-ReLU-Linear on the mean of all tokens,
            instead of readers.
        in_metadata: Where in a file's own metadata its settings stand, instead of config.json.
        shared: Tensors that all blocks read, by the names that parts have for them.
        raw_hidden: Hidden states are given before the last norm.
        encoder: The network whose last stream the blocks read as well, in the same files.
        split_axes: Matrices have each of their axes on disk; a Linear joins all but the stream's.
        gguf: How a model_type stands in GGUF, of those that are read from there.
    """

    name: str
    keys: Mapping[str, Keys]
    prefixes: tuple[str, ...]
    probes: tuple[str, ...]
    block: str
    block_of: Callable[[Settings], Block]
    matrices: tuple[Matrix, ...]
    norms: tuple[str, ...] | None
    norm_shifts: bool = True
    norm_offset: float = 0.0
    first_norm: str | None = None
    first_norm_is_read: bool = False
    last_norm: str | None = None
    embeddings: tuple[Embedding, ...] = ()
    readers: tuple[Reader, ...] = ()
    predictor: WordPredictor | None = None
    labels: tuple[str, ...] = ("classifier", "score", "cls_classifier", "distillation_classifier")
    poolers: Mapping[str, str | None] = field(default_factory=dict)
    pooled: Mapping[str, str] = field(default_factory=dict)
    summaries: tuple[Summary, ...] = ()
    ignored: tuple[str, ...] = field(default=())
    refused: tuple[str, ...] = ()
    output_bias: bool = True
    hidden_head: tuple[str, str, str, str] | None = None
    in_metadata: str | None = None
    shared: Mapping[str, str] = field(default_factory=dict)
    raw_hidden: bool = False
    split_axes: bool = False
    encoder: "Family | None" = None
    gguf: Mapping[str, Gguf] = field(default_factory=dict)

    @property
    def writers(self) -> tuple[Writer, ...]:
        """Everything else that writes into the stream: the tensors of its embeddings."""
        steps = (step.tensors.items() for step in self.embeddings)
        return tuple(Writer(name, axes) for tensors in steps for name, axes in tensors)

    @property
    def inputs(self) -> Inputs:
        """What a network of it is given."""
        return next(step.inputs for step in self.embeddings if step.inputs is not None)

    @property
    def fixed_positions(self) -> bool:
        """Whether positions are added that no file holds."""
        return any(isinstance(step, FixedPositions) for step in self.embeddings)

    def sayable(self, kind: str) -> frozenset[str]:
        """All settings of a model_type that the user may give, those of the encoder among them."""
        inner = self.encoder.sayable(kind) if self.encoder is not None else frozenset()
        return self.keys[kind].sayable | inner

    @property
    def model_types(self) -> tuple[str, ...]:
        """What config.json calls it."""
        return tuple(self.keys)
