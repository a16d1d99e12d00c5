"""A checkpoint on disk as a network: blocks as weights with declared axes, and all around them."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transformer_nfn.checkpoints import agreement, soundness
from transformer_nfn.checkpoints.config import read_config, read_model_type
from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.families import recognise
from transformer_nfn.checkpoints.family import (
    Family,
    Matrix,
    Reader,
    Summary,
    WordPredictor,
    Writer,
)
from transformer_nfn.checkpoints.files.closing import Closing
from transformer_nfn.checkpoints.files.places import Place
from transformer_nfn.checkpoints.files.stored import StoredTensors
from transformer_nfn.checkpoints.files.tensors import SomeTensors
from transformer_nfn.checkpoints.layout import outputs, pack, stored_names, unpack
from transformer_nfn.checkpoints.opening import open_files
from transformer_nfn.checkpoints.parts import (
    BODY,
    ENCODER,
    body_of,
    encoder_of,
    settings_of,
    tower_of,
)
from transformer_nfn.checkpoints.settings.keys import read_settings
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import Inputs, NormPlace, StreamKind, WeightBatch, Words

#: Endings of names of classes whose head has a row for each label.
_LABELLING = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForMultipleChoice",
    "ForImageClassification",
    "ForImageClassificationWithTeacher",
)


@dataclass(frozen=True)
class Head:
    """A layer outside the blocks that reads the stream: names of its tensors in this file.

    Attributes:
        name: The layer.
        weight: Its weight, or the embedding it is tied to.
        bias: Its bias, if there is one.
        tied: Whether the weight is the embedding's.
        own: The weight's name where it has a tensor of its own.
        token: The place of the token that it reads; None for all.
        after: What is made of its output, if anything is.
    """

    name: str
    weight: str
    bias: str | None
    tied: bool
    own: str
    token: int | None
    after: Callable[[Tensor, Settings], Tensor] | None = None


class Checkpoint(Closing):
    """An open checkpoint. A context manager, since it holds files open.

    Attributes:
        files: Its tensors.
        family: What it is.
        prefix: What stands before its names.
        settings: Head counts and all that shapes do not say.
        spec: The declaration and sizes of its blocks.
        blocks: How many.
        inner: It is the encoder of another, and only that reads what it gives.
        config_given: The config.json that was named when it was opened, if one was.
        options: Settings that came before those of the config.
        only: The part of the model that it is; None for the whole.
    """

    inner = False
    only: str | None = None

    def __init__(
        self,
        path: str | Path,
        *,
        config: str | Path | None = None,
        options: Mapping[str, Any] | None = None,
        family: Family | None = None,
        only: str | None = None,
    ) -> None:
        """Open a file, an index, or a folder; only headers and the config are read.

        Args:
            path: See `TensorFiles`.
            config: A config.json; that of the same folder if None.
            options: Settings that come before those of the config.
            family: What it is; found by the names of its tensors if None.
            only: A part of the model, see `parts`; the rest is not looked at.

        Raises:
            CheckpointError: If it is not sound, of no family we know, or lacks a setting.
        """
        self.config_given, self.options, self.only = config, dict(options or {}), only
        self.files = open_files(path)
        try:
            given = dict(options or {})
            self.files = tower_of(self.files, only)
            names = self.files.entries
            if only == ENCODER and family is None:
                family = encoder_of(names, str(path))
            self.family, self.prefix, kinds = recognise(names, str(path), family)
            stated = settings_of(read_config(self.files, self.family, config), self.family, only)
            self.config = {**stated, **given}
            if self.family.in_metadata is None:  # several families may have such names
                said = self.config.get("model_type")
                self.family, self.prefix, kinds = recognise(names, str(path), family, said)
            kind = read_model_type(self.family, kinds, self.config, given, str(path), names)
            agreement.check_options(given, stated, self.family, kind)
            self._stated = bool(stated)
            self._read(kind)
            if only in (BODY, ENCODER):
                self._leave_out(only)
        except BaseException:
            self.files.close()
            raise

    def _read(self, kind: str) -> None:
        """Settings and sizes, and the encoder if there is one; no tensor is read."""
        self._kind, self._keys = kind, self.family.keys[kind]
        self.blocks = soundness.count_blocks(self.files, self.family, self.block_name)
        if self._stated:
            agreement.check_block_count(self.files, self._keys, self.config, self.blocks)
        self.settings: Settings = read_settings(
            self._keys, self.config, self.files.entries, self.blocks, self.options
        )
        soundness.check_settings(self.settings, str(self.path))
        self.spec = soundness.read_spec(self.files, self.family, self.block_name(0), self.settings)
        self._encoder: Checkpoint | None = None
        if self.family.encoder is not None:
            encoder = copy.copy(self)
            encoder.family, encoder.inner = self.family.encoder, True
            encoder._read(kind)
            sizes = self.spec.sizes
            if encoder._keys.heads != self._keys.heads:  # and so all that depends on them
                sizes = {"D": self.D}
            agreement.check_encoder(self.files, sizes, encoder.spec.sizes)
            self._encoder = encoder
        self._check()

    def _leave_out(self, only: str) -> None:
        """All that is not of a part: heads, or what belongs to the decoder."""
        if only == ENCODER:
            stem = self.prefix + self.family.block.partition(".")[0]
            kept = {name for name in self.files if name.startswith(stem)} | self.owned
        else:
            kept = set(self.files) - self.head_tensors
            self.family = body_of(self.family)
        self.files = SomeTensors(self.files, kept)
        for name, value in vars(Checkpoint).items():
            if isinstance(value, cached_property):
                self.__dict__.pop(name, None)

    @property
    def head_tensors(self) -> set[str]:
        """What heads and poolers have for themselves."""
        heads = (name for head in self.heads.values() for name in (head.own, head.bias) if name)
        named = {*heads, *self.others} - {*self.unknown, *self._beside}
        return named & set(self.files)

    def body(self) -> "Checkpoint":
        """The same without heads and poolers: it gives hidden states."""
        body = copy.copy(self)
        body.only = BODY
        body._leave_out(BODY)
        return body

    @property
    def encoder(self) -> "Checkpoint | None":
        """The network whose last stream the blocks read as well."""
        if self._encoder is None or self._encoder.files is self.files:
            return self._encoder
        moved = copy.copy(self._encoder)  # these are other numbers of the same network
        moved.files = self.files
        return moved

    def _check(self) -> None:
        """Every tensor that is there must have the shape that the others ask for."""
        names = [self.block_name(number) for number in range(self.blocks)]
        soundness.check_blocks(self.files, self.family, self.spec, names)
        stem = self.prefix + self.family.block.partition("{}")[0]
        agreement.check_refused(self.files, self.family, self.prefix)
        agreement.check_tables_of_distances(self.files, self._shared, self.settings.heads)
        agreement.check_owned(self.files, self.family, stem, self._block_tensors | self._shared)
        if "model_type" not in self.options and self.only is None:  # else the user knows better
            agreement.check_architectures(self.config, self._keys, str(self.path))
        owned = self._block_tensors | self._norm_tensors | set(self.writers)
        agreement.check_prefixes(self.files, self.family, self.prefix, owned)
        shifts = self.family.norm_shifts
        soundness.check_norms(self.files, self.norm_names, self.D, shifts=shifts)
        sizes = {**self.spec.sizes, "blocks": self.blocks}
        agreement.check_sizes(self.files, self._keys, self.config, sizes, self.name)
        agreement.check_biases(self.files, self._keys.biases, self.config, names)
        if not self.writers and self.family.inputs is not Inputs.VECTORS:
            raise CheckpointError(f"{self.path} has no embedding")
        soundness.check_writers(self.files, self.family, self.writers)
        heads = self.heads.values()
        outside = {name: writer.axes for name, writer in self.writers.items()}
        outside |= {head.weight: "o x" for head in heads}
        soundness.check_stream(self.files, outside, self.D)
        soundness.check_places(self.files, self.family, self.settings, self.name)
        soundness.check_sound(self.files, self.family, self.D, self.name)
        for head in heads:
            if head.bias:
                soundness.check_head_bias(self.files, head.weight, head.bias)
        if self.hidden_head:
            soundness.check_classifier(self.files, self.hidden_head, self.D)
        for summary, named in self.summaries.values():
            soundness.check_summary(self.files, summary.tensors, named, self.D)
        agreement.check_labels(self.files, self.config, self.label_weights)
        decoder = f"{self.predictor.decoder}.weight" if self.predictor else ""
        if self.predictor and decoder not in (*self.files, *self.tied_decoder):
            raise CheckpointError(
                f"{self.path} has no {decoder}, and its config says that the embedding is not "
                f"used for it; if it is, say --set tie_word_embeddings=true"
            )
        for name in self._needed_outside:
            if name not in (*self.files, *self.tied_decoder):
                raise CheckpointError(
                    f"{self.path} has no {name}; a loader would make it up, so its "
                    f"function is not known"
                )

    def close(self) -> None:
        """Close its files."""
        self.files.close()

    @property
    def path(self) -> Place:
        """What was opened."""
        return self.files.path

    @property
    def post_norm(self) -> bool:
        """Whether norms stand after the sum with the residual stream."""
        return self.spec.block.halves[0].place is NormPlace.AFTER_SUM

    @property
    def skip(self) -> bool:
        """Whether there are skip connections; the paper's nets have none."""
        return self.spec.block.halves[0].skip

    @property
    def D(self) -> int:
        """Model dimension."""
        return self.spec.sizes["D"]

    @property
    def dtype(self) -> torch.dtype:
        """How the weights of its blocks are stored: the coarsest of them."""
        kinds = {
            self.files.entry(self.block_name(i) + name).dtype
            for matrix in self.family.matrices
            for name in stored_names(self.spec, matrix)
            for i in range(self.blocks)
        }
        return max(kinds, key=lambda kind: torch.finfo(kind).eps)

    @property
    def unknown_settings(self) -> dict[str, Any]:
        """Keys of the config of which nobody knows what they do, and their values."""
        known = self.family.sayable(self._kind)
        return {name: value for name, value in self.config.items() if name not in known}

    # ------------------------------------------------------------------------------- names

    def name(self, name: str) -> str:
        """A name of the family's table as it is in this file."""
        return self.prefix + name

    def block_name(self, number: int) -> str:
        """What stands before the names of a block."""
        return self.prefix + self.family.block.format(number)

    @property
    def raw(self) -> bool:
        """Whether halves read the stream as it is, and no norm can be folded into them."""
        return self.spec.block.halves[0].raw

    @property
    def centred_reads(self) -> bool:
        """Whether what the halves read has no mean: theirs along the ones is free.

        Nor does anybody see the mean of what is written before the first block.
        """
        return self.settings.norm == "layer" and not self.raw

    @property
    def centred_writes(self) -> bool:
        """Whether nobody sees the mean of what the halves write."""
        shown = self.family.raw_hidden and self.gives_hidden_states
        # A scale of each coordinate makes something else of a mean.
        normed = self.settings.norm == "layer" and (self.post_norm or not self.raw)
        return normed and not shown and not self.spec.block.gains

    def reading_norms(self, number: int) -> tuple[str | None, ...]:
        """The norms that the halves of a block read and can take over; None for none."""
        if self.family.norms is None or self.raw:
            return (None,) * len(self.spec.block.halves)
        first, *others = (self.block_name(number) + norm for norm in self.family.norms)
        embedded = self.name(self.family.first_norm or "")
        if self.post_norm:
            before = self.block_name(number - 1) + self.family.norms[-1] if number else embedded
            return before, first, *others[:-1]
        return embedded if self.family.first_norm_is_read and not number else first, *others

    def gives_stream(self, norm: str | None) -> bool:
        """Whether a norm's output is the stream itself: it changes only with the basis."""
        return norm in self.stream_norms

    @property
    def last_norm(self) -> str | None:
        """The norm whose output the readers outside the blocks read."""
        if self.post_norm and self.family.norms is not None:
            return self.block_name(self.blocks - 1) + self.family.norms[-1]
        return self.name(self.family.last_norm) if self.family.last_norm else None

    @property
    def stream_norms(self) -> list[str]:
        """Norms whose output is the stream itself: their scale holds its axes."""
        if self.post_norm:
            return self.norm_names
        return [self.name(self.family.first_norm)] if self.family.first_norm else []

    @property
    def held_norms(self) -> list[str]:
        """Those of them that nothing can take over: they change only with the basis."""
        reading = {name for i in range(self.blocks) for name in self.reading_norms(i)}
        return [name for name in self.stream_norms if name not in reading | {self.last_norm}]

    @property
    def stream_kind(self) -> StreamKind:
        """What the norms leave of the basis of the stream."""
        if self.gives_hidden_states or any(step.holds_stream for step in self.family.embeddings):
            return StreamKind.FIXED
        if self.spec.block.gains and self.settings.norm == "rms":
            return StreamKind.SIGNED
        if self.post_norm:
            return StreamKind.FLIPPED
        held = self.stream_norms or self.spec.block.gains
        return StreamKind.PERMUTED if held else StreamKind.ORTHOGONAL

    @cached_property
    def norm_names(self) -> list[str]:
        """All norms, in the order in which tokens meet them."""
        inside = [norm for number in range(self.blocks) for norm in self._own_norms(number)]
        outer = [self.family.first_norm], [self.family.last_norm]
        first, last = ([self.name(norm) for norm in norms if norm] for norms in outer)
        return [*first, *inside, *last]

    def _own_norms(self, number: int) -> list[str]:
        """The norms that stand in a block."""
        norms: tuple[str, ...] = self.family.norms or ()
        if self.family.first_norm_is_read and not number:
            norms = norms[1:]
        return [self.block_name(number) + norm for norm in norms]

    @cached_property
    def writers(self) -> dict[str, Writer]:
        """What else writes into the stream, by its name in this file."""
        known = {self.name(writer.name): writer for writer in self.family.writers}
        return {name: writer for name, writer in known.items() if name in self.files}

    @property
    def missing_writer(self) -> str | None:
        """The first embedding that the file lacks; a zoo's net may be given vectors instead."""
        names = (self.name(writer.name) for writer in self.family.writers)
        return next((name for name in names if name not in self.writers and self.writers), None)

    @property
    def words(self) -> str | None:
        """The table of words in this file, if it reads any."""
        steps = (step for step in self.family.embeddings if isinstance(step, Words))
        return next((self.name(name) for step in steps for name in step.tensors), None)

    @cached_property
    def heads(self) -> dict[str, Head]:
        """What else reads the stream, by the layer's name in this file."""
        found = {}
        for reader in self.family.readers:
            name = reader.name if reader.own else self.name(reader.name)
            own = f"{name}.weight"
            bias = self._bias_of(reader, name)
            if own in self.files and not self._reads_pooled(name):
                found[name] = Head(name, own, bias, False, own, reader.token, reader.after)
            elif reader.tied and self.settings.tied and self._predicts_tokens:
                found[name] = Head(
                    name, self.name(reader.tied), bias, True, own, reader.token, reader.after
                )
        return found

    def _bias_of(self, reader: Reader, name: str) -> str | None:
        """A bias that the model does not have is a tensor that nobody knows."""
        there = reader.bias if isinstance(reader.bias, bool) else self._is_a(*reader.bias)
        return f"{name}.bias" if there and f"{name}.bias" in self.files else None

    def _is_a(self, *endings: str) -> bool:
        """Whether the config's architectures name a model that ends so."""
        return any(name.endswith(endings) for name in self._architectures)

    @property
    def architecture(self) -> str | None:
        """The kind of class that config.json names, "ForCausalLM", if it names one."""
        name = next(iter(self._architectures), None)
        return name and name.removeprefix(self._keys.classes or "")

    @property
    def _architectures(self) -> list[str]:
        names = self.config.get("architectures") if self.only is None else None
        return [n for n in names if isinstance(n, str)] if isinstance(names, list) else []

    def _reads_pooled(self, name: str) -> bool:
        """Whether a layer reads the pooler's output: as the config says, else if there is one."""
        if name not in self.family.pooled or self._is_a("ForTokenClassification"):
            return False
        return bool(self._architectures) or self.family.pooled[name] in self._poolers

    @cached_property
    def _poolers(self) -> dict[str, str]:
        """The poolers of this file, by their names in the family's table their names here."""
        found: dict[str, str] = {}
        for name in self.family.poolers:
            for here in (self.name(name), name):
                if f"{here}.weight" in self.files:
                    found.setdefault(name, here)
        return found

    @property
    def poolers(self) -> dict[str, str]:
        """Readers whose output goes through an activation, by name, and that activation."""
        given = self.settings.flag("pooler_act")
        return {
            here: given or self.family.poolers[name] or self.settings.activation
            for name, here in self._poolers.items()
        }

    @cached_property
    def pooled_heads(self) -> dict[str, str]:
        """Layers that read what a pooler gives, by their names, and which pooler."""
        return {
            name: self._poolers[pooler]
            for name, pooler in self.family.pooled.items()
            if self._poolers.get(pooler) in self.heads
            and name not in self.heads
            and f"{name}.weight" in self.files
        }

    @property
    def _predicts_tokens(self) -> bool:
        """Whether a head that has no tensor is there: as the config says, else as the prefix does.

        The first GPT-2 files have no prefix and a head; a bare model has neither.
        """
        if self._architectures:
            return self._is_a("LMHeadModel", "ForCausalLM", "ForConditionalGeneration")
        return bool(self.prefix) and "score.weight" not in self.files

    @property
    def predictor(self) -> WordPredictor | None:
        """What makes words of a reader's output, where this file has that reader."""
        predictor = self.family.predictor
        return predictor if predictor and f"{predictor.reads}.weight" in self.files else None

    @property
    def tying_key(self) -> str | None:
        """What config.json says of heads that share the embedding, where it decides it."""
        return next((key.name for key in self._keys.matter if key.to == "tied"), None)

    @property
    def label_weights(self) -> list[str]:
        """Weights of heads that have a row for each label of config.json."""
        names = (*self.heads, *self.pooled_heads)
        labelled = [name for name in names if name.rpartition(".")[2] in self.family.labels]
        return [f"{name}.weight" for name in labelled]

    @property
    def _needed_outside(self) -> list[str]:
        """Tensors outside the blocks without which the function is not known."""
        names = [f"{name}.bias" for name in self.pooled_heads]
        names += sorted(self._beside)
        if (predictor := self.predictor) is not None:
            names += predictor.norm_tensors
            own = f"{predictor.decoder}.bias"
            names += [] if own in self.files else [predictor.bias if self.settings.tied else own]
        return names

    @property
    def made_up(self) -> str | None:
        """What a loader would make up at random, since the file lacks it; None if it has all.

        A file without any head is one of hidden states, whatever class its config names: so are
        many that were made for embeddings.
        """
        if self.missing_writer is not None or not self._has_heads:
            return self.missing_writer
        heads = {name.rpartition(".")[2] for name in (*self.heads, *self.pooled_heads)}
        labels = heads & set(self.family.labels)
        if {"score", "classifier"} <= {reader.name for reader in self.family.readers}:
            # Then they are of different classes.
            labels -= {"score"} if self._is_a("ForTokenClassification") else set()
        needed = (
            (_LABELLING, bool(labels), "head for labels"),
            (("ForQuestionAnswering",), "qa_outputs" in heads, "qa_outputs"),
            (("ForMaskedLM",), self.predictor is not None, "head for words"),
            (
                ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"),
                bool(heads - labels - {"qa_outputs"}),
                "lm_head",
            ),
        )
        return next(
            (what for names, there, what in needed if self._is_a(*names) and not there), None
        )

    @cached_property
    def summaries(self) -> dict[str, tuple[Summary, dict[str, str]]]:
        """What is made of all hidden states, and what it reads: its names and those of this file.

        Raises:
            CheckpointError: If only some of its tensors are there.
        """
        found = {}
        for summary in self.family.summaries:
            names = {n: n if summary.own else self.name(n) for n in summary.tensors}
            there = [name for name in names.values() if name in self.files]
            if len(there) == len(names):
                found[summary.name] = summary, names
            elif there:
                gone = next(name for name in names.values() if name not in self.files)
                raise CheckpointError(f"{self.path} has {there[0]} but no {gone}")
        return found

    @cached_property
    def tied_decoder(self) -> dict[str, str]:
        """A predictor's decoder where it is the word embedding: its own names, what they share.

        It reads no stream, but must stay as it is where the embedding changes.
        """
        if (predictor := self.predictor) is None:
            return {}
        shared = {}
        if self.settings.tied:
            if predictor.bias != f"{predictor.decoder}.bias":
                shared[f"{predictor.decoder}.bias"] = predictor.bias
            shared[f"{predictor.decoder}.weight"] = self.name(predictor.tied)
        return {own: of for own, of in shared.items() if own not in self.files}

    @cached_property
    def hidden_head(self) -> tuple[str, str, str, str] | None:
        """Weight and bias, twice, of a head Linear-ReLU-Linear on the mean of all tokens."""
        if (names := self.family.hidden_head) is None:
            return None
        one, two, three, four = map(self.name, names)
        return one, two, three, four

    @property
    def hidden_neurons(self) -> int:
        """Hidden neurons of a zoo net's classifier; 0 for other networks."""
        return self.files.entry(self.hidden_head[1]).shape[0] if self.hidden_head else 0

    @cached_property
    def others(self) -> list[str]:
        """Tensors that neither write nor read the stream: heads' own layers, unknown ones."""
        if self.inner:  # all else is the decoder's
            return sorted(self._beside)
        used = self._block_tensors | self._norm_tensors
        used |= set(self.writers) | set(self.hidden_head or ())
        used |= {name for head in self.heads.values() for name in (head.weight, head.bias) if name}
        if self._encoder is not None:
            used |= self._encoder.owned
        return [
            n for n in self.files if n not in used and not n.endswith(self.family.ignored or "\0")
        ]

    @property
    def shares_words(self) -> bool:
        """Whether encoder and decoder have one table of words, so that their bases are one."""
        return self._encoder is not None and bool(self.writers.keys() & self._encoder.writers)

    @property
    def owned(self) -> set[str]:
        """Names of all that blocks, norms and embeddings may have, and of what blocks share."""
        return self._block_tensors | self._norm_tensors | set(self.writers) | self._beside

    @property
    def _beside(self) -> set[str]:
        """Names of what all blocks share, and of what embeddings have that is not of the stream."""
        inner = (name for step in self.family.embeddings for name in step.inner)
        return self._shared | {self.name(name) for name in inner}

    @property
    def _shared(self) -> set[str]:
        """Names of what all blocks share."""
        return {self.name(name) for name in self.family.shared.values()}

    @property
    def _norm_tensors(self) -> set[str]:
        """Names that the norms' tensors may have."""
        return {f"{norm}.{part}" for norm in self.norm_names for part in ("weight", "bias")}

    @cached_property
    def _block_tensors(self) -> set[str]:
        """Names that the blocks' tensors may have."""
        return {
            name
            for number in range(self.blocks)
            for name in (
                *(f"{n}.{part}" for n in self._own_norms(number) for part in ("weight", "bias")),
                *self.matrix_names(number),
            )
        }

    @property
    def unknown(self) -> list[str]:
        """Those of `others` that this family's heads do not have: nobody knows what they do."""
        known = {f"{name}.{part}" for name in self.pooled_heads for part in ("weight", "bias")}
        known |= self._beside
        known |= {name for _, names in self.summaries.values() for name in names.values()}
        known |= set(self.predictor.tensors if self.predictor else ())
        return [name for name in self.others if name not in known]

    @property
    def gives_hidden_states(self) -> bool:
        """Whether its output is the stream itself: of a model without a head, or where none is."""
        if self.hidden_head is not None or self.inner:
            return False
        if self._is_a("Model") and not self._is_a("LMHeadModel", "DoubleHeadsModel"):
            return True
        return not self._has_heads

    @property
    def _has_heads(self) -> bool:
        """Whether anything reads the stream, or a pooler, for an output of its own."""
        return bool(self.heads.keys() - self.poolers.keys() or self.pooled_heads)

    # -------------------------------------------------------------------------------- tensors

    @property
    def stored(self) -> StoredTensors:
        """Its tensors by the names of the family's table."""
        return StoredTensors(self.files, self.prefix, dict(self.settings.flags))

    def block(self, number: int, dtype: torch.dtype | None = torch.float64) -> WeightBatch:
        """The weights of a block, biases of queries, keys and values as the last input row."""
        tensors: dict[str, Tensor] = {}
        for matrix in self.family.matrices:
            tensors |= unpack(self.files, self.spec, self.block_name(number), matrix, dtype)
        for name in self.spec.block.tensors:
            if name not in tensors:  # a bias that this file has not
                tensors[name] = torch.zeros(self.spec.shape(name), dtype=tensors["Q"].dtype)
        return WeightBatch(self.spec, {n: t[None, None, None] for n, t in tensors.items()})

    def matrix_names(self, number: int) -> list[str]:
        """The names of a block's matrices and of the biases they may have."""
        return [
            self.block_name(number) + name
            for matrix in self.family.matrices
            for name in (*stored_names(self.spec, matrix), matrix.bias)
            if name
        ]

    def tensor(self, number: int, name: str) -> Tensor:
        """One declared tensor of a block, in float64."""
        matrix = next(matrix for matrix in self.family.matrices if name in matrix.tensors)
        found = unpack(self.files, self.spec, self.block_name(number), matrix, torch.float64)
        return found[name]

    def batch(self, dtype: torch.dtype | None = torch.float32) -> WeightBatch:
        """All blocks in one batch of one network, as layers take them."""
        blocks = [self.block(number, dtype) for number in range(self.blocks)]
        return WeightBatch.cat(blocks, "blocks")

    def pack(self, number: int, batch: WeightBatch) -> dict[str, Tensor]:
        """The inverse of `block`: tensors by their names on disk, in the batch's dtype."""
        packed: dict[str, Tensor] = {}
        for matrix in self.family.matrices:
            packed |= pack(self.files, self.spec, self.block_name(number), matrix, batch)
        return packed

    def outputs(self, matrix: Matrix, rows: Tensor) -> dict[str, Tensor]:
        """What each tensor of a reading matrix gives, "p o", of what the whole of it gives."""
        return outputs(self.spec, matrix, rows)

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
            scale = self.files.read(f"{name}.weight").double() + self.family.norm_offset
            if f"{name}.bias" in self.files:
                shift = self.files.read(f"{name}.bias").double()
        return scale, shift

    def __repr__(self) -> str:
        return f"Checkpoint({str(self.path)!r}, {self.family.name}, l={self.blocks}, {self.spec})"
