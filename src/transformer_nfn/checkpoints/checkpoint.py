"""A checkpoint on disk as a network: blocks as weights with declared axes, and all around them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite, prod
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.families import recognise
from transformer_nfn.checkpoints.family import Matrix, Settings, Writer
from transformer_nfn.checkpoints.header import read_json_object
from transformer_nfn.checkpoints.tensorfiles import TensorFiles, read_json_file
from transformer_nfn.space import BlockSpec, WeightBatch

MAX_BLOCKS = 4096


@dataclass(frozen=True)
class Head:
    """A layer outside the blocks that reads the stream: names of its tensors in this file.

    Attributes:
        name: The layer.
        weight: Its weight, or the embedding it is tied to.
        bias: Its bias, if there is one.
        tied: Whether the weight is the embedding's.
        own: The weight's name where it has a tensor of its own.
    """

    name: str
    weight: str
    bias: str | None
    tied: bool
    own: str


class Checkpoint:
    """An open checkpoint. A context manager, since it holds files open.

    Attributes:
        files: Its tensors.
        family: What it is.
        prefix: What stands before its names.
        settings: Head counts and all that shapes do not say.
        spec: The declaration and sizes of its blocks.
        blocks: How many.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        config: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Open a file, an index, or a folder; only headers and the config are read.

        Args:
            path: See `TensorFiles`.
            config: A config.json; that of the same folder if None.
            options: Settings that come before those of the config.

        Raises:
            CheckpointError: If it is not sound, of no family we know, or lacks a setting.
        """
        self.files = TensorFiles(path)
        try:
            self.family, self.prefix = recognise(self.files.entries, str(path))
            self.config = {**self._config(config), **(options or {})}
            kind = self.config.get("model_type", self.family.model_types[0])
            if kind not in self.family.model_types:
                raise CheckpointError(
                    f"{path}: config.json says {kind!r:.60}, the tensors' names say "
                    f"{' or '.join(self.family.model_types)}"
                )
            self.settings: Settings = self.family.settings(self.config)
            self._check_settings()
            self.blocks = self._count_blocks()
            self.spec = self._read_spec()
            self._check_shapes()
        except BaseException:
            self.files.close()
            raise

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.files.close()

    @property
    def path(self) -> Path:
        """What was opened."""
        return self.files.path

    @property
    def D(self) -> int:
        """Model dimension."""
        return self.spec.sizes["D"]

    @property
    def dtype(self) -> torch.dtype:
        """How the weights of its blocks are stored: the coarsest of them."""
        kinds = {
            self.files.entry(self.block_name(i) + matrix.weight).dtype
            for i in range(self.blocks)
            for matrix in self.family.matrices
        }
        return max(kinds, key=lambda kind: torch.finfo(kind).eps)

    # ------------------------------------------------------------------------------- names

    def name(self, name: str) -> str:
        """A name of the family's table as it is in this file."""
        return self.prefix + name

    def block_name(self, number: int) -> str:
        """What stands before the names of a block."""
        return self.prefix + self.family.block.format(number)

    def reading_norms(self, number: int) -> tuple[str | None, str | None]:
        """The norms whose output attention and MLP of a block read; None if it has no weights."""
        if self.family.norms is None:
            return None, None
        first, second = (self.block_name(number) + norm for norm in self.family.norms)
        if not self.family.post_norm:
            return first, second
        if number:
            return self.block_name(number - 1) + self.family.norms[1], first
        return self.name(self.family.first_norm or ""), first

    @property
    def last_norm(self) -> str | None:
        """The norm whose output the readers outside the blocks read."""
        if self.family.norms is None:
            return None
        if self.family.post_norm:
            return self.block_name(self.blocks - 1) + self.family.norms[1]
        return self.name(self.family.last_norm or "")

    @property
    def norm_names(self) -> list[str]:
        """All norms, in the order in which tokens meet them."""
        if self.family.norms is None:
            return []
        inside = [
            self.block_name(i) + norm for i in range(self.blocks) for norm in self.family.norms
        ]
        outer = [self.family.first_norm], [self.family.last_norm]
        first, last = ([self.name(norm) for norm in norms if norm] for norms in outer)
        return [*first, *inside, *last]

    @cached_property
    def writers(self) -> dict[str, Writer]:
        """What else writes into the stream, by its name in this file."""
        known = {self.name(writer.name): writer for writer in self.family.writers}
        return {name: writer for name, writer in known.items() if name in self.files}

    @cached_property
    def heads(self) -> dict[str, Head]:
        """What else reads the stream, by the layer's name in this file."""
        found = {}
        for reader in self.family.readers:
            name = reader.name if reader.own else self.name(reader.name)
            own = f"{name}.weight"
            bias = f"{name}.bias" if f"{name}.bias" in self.files else None
            if own in self.files:
                found[name] = Head(name, own, bias, False, own)
            elif reader.tied and self.settings.tied and self._predicts_tokens:
                found[name] = Head(name, self.name(reader.tied), bias, True, own)
        return found

    @property
    def _predicts_tokens(self) -> bool:
        """Whether a head that has no tensor is there: as the config says, else as the prefix does.

        The first GPT-2 files have no prefix and a head; a bare model has neither.
        """
        names = self.config.get("architectures")
        if isinstance(names, list) and names:
            endings = ("LMHeadModel", "ForCausalLM")
            return any(isinstance(name, str) and name.endswith(endings) for name in names)
        return bool(self.prefix) and "score.weight" not in self.files

    @cached_property
    def tied_decoder(self) -> dict[str, str]:
        """BERT's decoder where it is the word embedding: names of its own, and what they share.

        It reads no stream, but must stay as it is where the embedding changes.
        """
        if self.family.name != "bert" or "cls.predictions.transform.dense.weight" not in self.files:
            return {}
        shared = {
            "cls.predictions.decoder.weight": self.name("embeddings.word_embeddings.weight"),
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        }
        if not self.settings.tied:
            return {}
        return {own: of for own, of in shared.items() if own not in self.files}

    @cached_property
    def hidden_head(self) -> tuple[str, str, str, str] | None:
        """Weight and bias, twice, of a zoo net's classifier Linear-ReLU-Linear."""
        names = ("weight1", "bias1", "weight2", "bias2")
        one, two, three, four = (f"classifier.{name}" for name in names)
        return (one, two, three, four) if self.family.norms is None else None

    @cached_property
    def others(self) -> list[str]:
        """Tensors that neither write nor read the stream: heads' own layers, unknown ones."""
        used = {
            self.block_name(i) + name
            for i in range(self.blocks)
            for matrix in self.family.matrices
            for name in (matrix.weight, matrix.bias)
            if name
        }
        used |= {f"{norm}.{part}" for norm in self.norm_names for part in ("weight", "bias")}
        used |= set(self.writers) | set(self.hidden_head or ())
        used |= {name for head in self.heads.values() for name in (head.weight, head.bias) if name}
        return [
            n for n in self.files if n not in used and not n.endswith(self.family.ignored or "\0")
        ]

    @property
    def unknown(self) -> list[str]:
        """Those of `others` that this family's heads do not have: nobody knows what they do."""
        known = ("cls.predictions.", "cls.seq_relationship.", "classifier.")
        return [name for name in self.others if not name.startswith(known)]

    @property
    def gives_hidden_states(self) -> bool:
        """Whether its output is the stream itself, which no head reads."""
        heads = [name for name in self.heads if not name.endswith("pooler.dense")]
        return not heads and self.hidden_head is None

    # -------------------------------------------------------------------------------- tensors

    def block(self, number: int, dtype: torch.dtype | None = torch.float64) -> WeightBatch:
        """The weights of a block, biases of queries, keys and values as the last input row."""
        tensors: dict[str, Tensor] = {}
        for matrix in self.family.matrices:
            tensors |= self._unpack(self.block_name(number), matrix, dtype)
        for name in self.spec.block.tensors:
            if name not in tensors:  # a bias that this file has not
                tensors[name] = torch.zeros(self.spec.shape(name), dtype=tensors["Q"].dtype)
        return WeightBatch(self.spec, {n: t[None, None, None] for n, t in tensors.items()})

    def pack(self, number: int, batch: WeightBatch) -> dict[str, Tensor]:
        """The inverse of `block`: tensors by their names on disk, in the batch's dtype."""
        packed: dict[str, Tensor] = {}
        for matrix in self.family.matrices:
            packed |= self._pack(self.block_name(number), matrix, batch)
        return packed

    def has_bias(self, tensor: str) -> bool:
        """Whether this file has a place for the bias row of a block's tensor."""
        for matrix in self.family.matrices:
            if tensor in matrix.tensors:
                return (
                    "z" in matrix.axes or (self.block_name(0) + (matrix.bias or "")) in self.files
                )
        return False

    def norm(self, name: str | None) -> tuple[Tensor, Tensor]:
        """Scale and shift of a norm in float64, 1 and 0 where it has none."""
        scale, shift = torch.ones(self.D, dtype=torch.float64), torch.zeros(self.D).double()
        if name is not None:
            scale = self.files.read(f"{name}.weight").double()
            if f"{name}.bias" in self.files:
                shift = self.files.read(f"{name}.bias").double()
        return scale, shift

    def _unpack(self, block: str, matrix: Matrix, dtype: torch.dtype | None) -> dict[str, Tensor]:
        """Weight axes into the declared order, and the bias behind them."""
        weight = self.files.read(block + matrix.weight)
        dtype = dtype or weight.dtype
        weight = weight.to(dtype).view(self._sizes(matrix.axes, matrix))
        bias = None
        if matrix.bias and block + matrix.bias in self.files:
            bias = self.files.read(block + matrix.bias).to(dtype)
        fused = weight.unbind(matrix.axes.split().index("f")) if "f" in matrix.axes else (weight,)
        axes = matrix.axes.replace("f", "").split()
        found: dict[str, Tensor] = {}
        for number, (tensor, part) in enumerate(zip(matrix.tensors, fused, strict=True)):
            order = self._order(tensor, axes)
            canonical = part.permute([axes.index(label) for label in order])
            if self._bias_row(tensor, matrix):
                row = order.index("x")
                shape = [self.spec.size(_own(label, tensor)) for label in order if label != "x"]
                values = torch.zeros(shape, dtype=dtype)
                if bias is not None:
                    values = bias.view(len(fused), *shape)[number]
                canonical = torch.cat([canonical, values.unsqueeze(row)], dim=row)
            found[tensor] = canonical.reshape(self.spec.shape(tensor))
        if matrix.bias_tensor and bias is not None:
            found[matrix.bias_tensor] = bias.view(self.spec.shape(matrix.bias_tensor))
        return found

    def _pack(self, block: str, matrix: Matrix, batch: WeightBatch) -> dict[str, Tensor]:
        parts, biases = [], []
        axes = matrix.axes.replace("f", "").split()
        for tensor in matrix.tensors:
            order = self._order(tensor, axes)
            value = batch[tensor][0, 0, 0]
            if self._bias_row(tensor, matrix):
                row = order.index("x")
                value = value.reshape([
                    self.D + 1 if label == "x" else self.spec.size(_own(label, tensor))
                    for label in order
                ])  # fmt: skip
                biases.append(value.select(row, self.D).reshape(-1))
                value = value.narrow(row, 0, self.D)
            value = value.reshape([self.spec.size(_own(label, tensor)) for label in order])
            parts.append(value.permute([order.index(label) for label in axes]))
        joined = torch.stack(parts, matrix.axes.split().index("f")) if len(parts) > 1 else parts[0]
        shape = self.files.entry(block + matrix.weight).shape
        packed = {block + matrix.weight: joined.reshape(shape)}
        if matrix.bias and block + matrix.bias in self.files:
            flat = batch[matrix.bias_tensor][0, 0, 0] if matrix.bias_tensor else torch.cat(biases)
            packed[block + matrix.bias] = flat.reshape(self.files.entry(block + matrix.bias).shape)
        return packed

    def _order(self, tensor: str, axes: list[str]) -> list[str]:
        """Declared labels of the weight: the bias row is no axis of it, nor is a neuron's scale."""
        labels = [index.label for index in self.spec.block.tensors[tensor] if index.label != "s"]
        names = {"z": "x", "v": "k"}  # where the disk has no such axis; v in GPT-2's fused matrix
        return [label if label in axes else names.get(label, label) for label in labels]

    def _bias_row(self, tensor: str, matrix: Matrix) -> bool:
        declared = [index.label for index in self.spec.block.tensors[tensor]]
        return "z" in declared and "z" not in matrix.axes

    def _sizes(self, axes: str, matrix: Matrix) -> list[int]:
        return [
            len(matrix.tensors) if label == "f" else self.spec.size(_own(label, matrix.tensors[0]))
            for label in axes.split()
        ]

    # --------------------------------------------------------------------------------- checks

    def _config(self, given: str | Path | None) -> dict[str, Any]:
        if given is not None:
            return dict(read_json_file(Path(given)))
        if self.family.norms is None:  # a zoo's net says what it is in its own metadata
            text = self.files.shards[0][1].metadata.get("net")
            if text is None:
                raise CheckpointError(
                    f"{self.path} does not say what net it is; write it with `tnfn zoo export`"
                )
            # JSON may hold half of a surrogate pair, which is no UTF-8 and is then refused as such.
            raw = text.encode(errors="surrogatepass")
            return dict(read_json_object(raw, f"metadata of {self.path}"))
        beside = self.files.folder / "config.json"
        return dict(read_json_file(beside)) if beside.exists() else {}

    def _check_settings(self) -> None:
        """Numbers that would make NaN of every net, and words that no one should be shown."""
        activation = self.settings.activation
        if not activation.isprintable() or len(activation) > 60:
            raise CheckpointError(f"{self.path}: {activation[:60]!r} is no activation")
        for name, value in self.settings.flags:
            if isinstance(value, dict | list):
                raise CheckpointError(f"{self.path}: {name} should not be {value!r:.60}")
        if self.settings.norm not in ("layer", "rms"):
            raise CheckpointError(f"norm is 'layer' or 'rms', not {self.settings.norm!r:.60}")
        if not 0 <= self.settings.eps < 1:
            raise CheckpointError(
                f"{self.path}: the norms' epsilon is {self.settings.eps}, not between 0 and 1"
            )
        rope = self.settings.rope
        if rope and not (
            rope.theta > 0 and all(map(isfinite, (rope.theta, *dict(rope.options).values())))
        ):
            raise CheckpointError(f"{self.path}: rope_theta and its options are not finite numbers")

    def _count_blocks(self) -> int:
        found = 0
        while self.block_name(found) + self.family.matrices[0].weight in self.files:
            found += 1
        if found > MAX_BLOCKS:
            raise CheckpointError(f"{self.path} has {found} blocks, more than {MAX_BLOCKS}")
        return found

    def _read_spec(self) -> BlockSpec:
        """Sizes from shapes, with the head count from the settings."""
        first, last = self.family.matrices[0], self.family.matrices[-1]
        output = next(matrix for matrix in self.family.matrices if matrix.tensors == ("O",))
        shape = self._entry_shape(last, 2)
        D, D_A = (shape[last.axes.split().index(label)] for label in "xa")
        heads, groups = self.settings.heads, self.settings.groups
        if heads % groups:
            raise CheckpointError(f"{self.path}: {heads} heads are no multiple of {groups} groups")
        z = "z" in first.axes
        queries = self._entry_size(first) // (len(first.tensors) * max(D + z, 1))
        values = self._entry_size(output) // max(D, 1)
        if not D or queries % heads or values % heads or not queries or not values:
            raise CheckpointError(
                f"{self.path}: {heads} heads do not divide the {queries} columns of its queries "
                f"and the {values} rows of its output; the head count is not this file's"
            )
        if len(first.tensors) > 1 and queries != values:  # fused, all three have one size
            raise CheckpointError(
                f"{self.path}: its fused matrix has {queries} columns each for queries and values, "
                f"its output has {values} rows"
            )
        sizes = {"D": D, "D_k": queries // heads, "D_v": values // heads, "D_A": D_A}
        stated = self.config.get("head_dim")
        if stated is not None and stated != sizes["D_k"]:
            raise CheckpointError(
                f"{self.path}: config.json says head_dim {stated!r:.20}, shapes {sizes['D_k']}"
            )
        block = self.family.declared(self.settings.activation)
        if "g" in block.axes:
            sizes |= {"groups": groups, "heads_per_group": heads // groups}
        else:
            sizes |= {"heads": heads}
        try:
            return BlockSpec(block, **sizes)
        except ValueError as error:
            raise CheckpointError(f"{self.path}: {error}") from None

    def _entry_shape(self, matrix: Matrix, axes: int) -> tuple[int, ...]:
        name = self.block_name(0) + matrix.weight
        if name not in self.files:
            raise CheckpointError(f"{self.path} has no tensor {name!r}")
        shape = self.files.entry(name).shape
        if len(shape) != axes:
            raise CheckpointError(f"{self.path}: {name} has shape {shape}, not {axes} axes")
        return shape

    def _entry_size(self, matrix: Matrix) -> int:
        name = self.block_name(0) + matrix.weight
        if name not in self.files:
            raise CheckpointError(f"{self.path} has no tensor {name!r}")
        return prod(self.files.entry(name).shape)

    def _check_shapes(self) -> None:
        """Every tensor that is there must have the shape that the others ask for."""
        wanted: dict[str, tuple[int, ...]] = {}
        weights = {matrix: self._stored_shape(matrix) for matrix in self.family.matrices}
        biases = {matrix: (self._bias_size(matrix),) for matrix in self.family.matrices}
        for number in range(self.blocks):
            for matrix in self.family.matrices:
                wanted[self.block_name(number) + matrix.weight] = weights[matrix]
                if matrix.bias and (bias := self.block_name(number) + matrix.bias) in self.files:
                    wanted[bias] = biases[matrix]
        for norm in self.norm_names:
            wanted[f"{norm}.weight"] = (self.D,)
            if f"{norm}.bias" in self.files:
                wanted[f"{norm}.bias"] = (self.D,)
        for name, expected in wanted.items():
            if name not in self.files:
                raise CheckpointError(f"{self.path} has no tensor {name!r}")
            shape = self.files.entry(name).shape
            if shape != expected:
                raise CheckpointError(
                    f"{self.path}: {name} has shape {shape}; "
                    f"{expected} was expected from the other tensors"
                )
            self._check_float(name)
        self._check_outside()

    def _stored_shape(self, matrix: Matrix) -> tuple[int, ...]:
        """A Linear joins all axes but the stream's; a zoo's net keeps each of them."""
        sizes = self._sizes(matrix.axes, matrix)
        if self.family.norms is None:
            return tuple(sizes)
        if matrix.axes.startswith("x"):
            return sizes[0], prod(sizes[1:])
        return prod(sizes[:-1]), sizes[-1]

    def _check_float(self, name: str) -> None:
        if not self.files.entry(name).dtype.is_floating_point:
            raise CheckpointError(
                f"{self.path}: {name} is {self.files.entry(name).dtype}, not floating point"
            )

    def _bias_size(self, matrix: Matrix) -> int:
        if matrix.bias_tensor:
            return prod(self.spec.shape(matrix.bias_tensor))
        labels = [label for label in matrix.axes.split() if label != "x"]
        return prod(self._sizes(" ".join(labels), matrix))

    def _check_outside(self) -> None:
        if not self.writers and self.family.norms is not None:
            raise CheckpointError(f"{self.path} has no embedding")
        places = {
            name: (writer.axes.split().index("x"), len(writer.axes.split()))
            for name, writer in self.writers.items()
        }
        places |= {head.weight: (1, 2) for head in self.heads.values()}
        for name, (axis, axes) in places.items():
            if name not in self.files:  # an embedding that a head is tied to
                raise CheckpointError(f"{self.path} has no tensor {name!r}")
            entry = self.files.entry(name)
            if len(entry.shape) != axes or entry.shape[axis] != self.D:
                raise CheckpointError(
                    f"{self.path}: {name} has shape {entry.shape}; {axes} axes were expected, "
                    f"axis {axis} of them {self.D}"
                )
            self._check_float(name)
        for head in self.heads.values():
            if not head.bias:
                continue
            if self.files.entry(head.bias).shape != self.files.entry(head.weight).shape[:1]:
                raise CheckpointError(f"{self.path}: {head.bias} does not fit {head.weight}")
            self._check_float(head.bias)
        if self.hidden_head:
            self._check_classifier(self.hidden_head)

    def _check_classifier(self, names: tuple[str, str, str, str]) -> None:
        if missing := [name for name in names if name not in self.files]:
            raise CheckpointError(f"{self.path} has no tensor {missing[0]!r}")
        shapes = [self.files.entry(name).shape for name in names]
        first, _, second, _ = shapes
        if (
            [len(shape) for shape in shapes] != [2, 1, 2, 1]
            or first[0] != self.D
            or shapes[1] != first[1:]
            or second[0] != first[1]
            or shapes[3] != second[1:]
        ):
            raise CheckpointError(
                f"{self.path}: the classifier's shapes {str(shapes)[:200]} do not fit"
            )
        for name in names:
            self._check_float(name)

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, {self.family.name}, l={self.blocks}, {self.spec})"


def _own(label: str, tensor: str) -> str:
    """GPT-2's fused matrix calls the last axis k for all three; of V it is v."""
    return "v" if label == "k" and tensor == "V" else label


def parse_option(text: str) -> tuple[str, Any]:
    """``"n_head=12"`` as a key and a value: JSON where it is JSON, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise CheckpointError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
