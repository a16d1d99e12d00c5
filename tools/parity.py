"""The authors' published code and ours side by side: terms, layers, model, speed.

    git clone https://github.com/Fsoft-AIC/Transformer-NFN CHECKOUT
    git -C CHECKOUT checkout c1520e2
    pip install einops
    python tools/parity.py CHECKOUT
    python tools/parity.py CHECKOUT --quick --json

Nothing of their code is here: it is imported from the checkout, so give one that you trust. Numbers
are compared in float64, times in float32, in turns and on one thread.

Which row of ours is which term of theirs is found by trying: one term gets random numbers and all
others 0, and the row is looked for whose parameter, with the same numbers, gives the same output.

Of their model it is the form that reads the classifier of a network by an MLP, which is the default
of their main.py and what the paper describes. Their other form ("hnps", an equivariant network for
MLPs) has no counterpart here; only its parameters are counted.

With --json the last line is one object with figures, targets and "ok". Exit code 1 if a target is
missed, 2 if their code cannot be imported.
"""

import argparse
import importlib
import json
import re
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

from transformer_nfn.layers import EquivariantLayer, InvariantLayer, RowLayer
from transformer_nfn.models import NFNConfig, TransformerNFN
from transformer_nfn.space import PAPER, BlockSpec, NetBatch, WeightBatch

#: The commit that the figures of the documentation are of.
COMMIT = "c1520e2"
#: Largest relative differences, and how many times as fast ours is at least. Training differs more:
#: Adam takes a step of full size also where a gradient is so small that rounding is a part of it.
TARGETS = {"terms": 1e-12, "layers": 1e-12, "model": 1e-12, "training": 1e-9, "speed": 1.0}
#: A row is that of a term if they differ by less.
SAME = 1e-9
#: Their names of our tensors; axes have the same order.
NAMES = {
    "Q": "W_q",
    "K": "W_k",
    "V": "W_v",
    "O": "W_o",
    "A": "W_A",
    "B": "W_B",
    "bA": "b_A",
    "bB": "b_B",
}
#: Lengths that differ wherever they can, so that few orders of axes have to be tried.
SMALL = BlockSpec(PAPER, D=4, heads=2, D_k=3, D_v=5, D_A=6)
QUICK = BlockSpec(PAPER, D=8, heads=2, D_k=4, D_v=4, D_A=16)
FULL = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)
BLOCKS = 2  # their invariant layer normalises two, no more and no fewer
HIDDEN = 10  # fixed in the MLP after their invariant layer
STEPS = 12

Tensors = Mapping[str, Tensor]


class MissingError(Exception):
    """Their code cannot be imported; the message says what to do."""


@dataclass(frozen=True)
class Authors:
    """What is used of their code."""

    commit: str
    layers: Any
    model: Any
    space: Any
    utils: Any


def load(checkout: Path) -> Authors:
    """Import their package from a checkout.

    Raises:
        MissingError: If it is not there, or needs a package that is not.
    """
    if not (checkout / "nfn_transformer" / "model.py").is_file():
        raise MissingError(
            f"{checkout} has no nfn_transformer/model.py; get it with\n"
            f"  git clone https://github.com/Fsoft-AIC/Transformer-NFN {checkout}\n"
            f"  git -C {checkout} checkout {COMMIT}"
        )
    sys.path.insert(0, str(checkout.resolve()))
    names = ("layers.layers", "model", "common.weight_space", "common.utils")
    try:
        modules = [importlib.import_module(f"nfn_transformer.{name}") for name in names]
    except ModuleNotFoundError as error:
        raise MissingError(f"their code needs {error.name}: pip install {error.name}") from error
    run = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "--short=7", "HEAD"],
        capture_output=True,
        text=True,
    )
    return Authors(run.stdout.strip() or "unknown", *modules)


# ------------------------------------------------------------------------------------ comparing


def apart(wanted: Tensors, found: Tensors) -> float:
    """The largest difference, relative to the largest number of the same tensor."""
    worst = 0.0
    for name, tensor in wanted.items():
        difference = (tensor - found[name]).abs().max().item()
        if difference:
            scale = tensor.abs().max().item()
            worst = max(worst, difference / scale if scale else float("inf"))
    return worst


@dataclass(frozen=True)
class Term:
    """One summand of a layer.

    Attributes:
        name: Its name in its layer.
        shape: The shape of its parameter in one block.
        run: The layer's outputs where all other parameters are 0; takes "l" and the shape.
    """

    name: str
    shape: tuple[int, ...]
    run: Callable[[Tensor], Tensors]


@dataclass(frozen=True)
class Match:
    """A row that is a term.

    Attributes:
        term: The term's name.
        row: The row's name.
        order: Which axes of the term's parameter are those of the row's, one after the other.
        error: The largest relative difference of their outputs.
    """

    term: str
    row: str
    order: tuple[int, ...]
    error: float

    def arranged(self, parameter: Tensor) -> Tensor:
        """The term's parameter, "l" and its axes, as the row has it."""
        return parameter.permute(0, *(1 + axis for axis in self.order))


def find_rows(
    term: Term, rows: Sequence[Term], blocks: int, generator: torch.Generator
) -> list[Match]:
    """All rows, and orders of the axes, by which a row gives what the term gives."""
    parameter = torch.randn(blocks, *term.shape, generator=generator, dtype=torch.float64)
    wanted = term.run(parameter)
    found = []
    for row in rows:
        for order in permutations(range(len(term.shape))):
            if tuple(term.shape[axis] for axis in order) == row.shape:
                match = Match(term.name, row.name, order, 0.0)
                error = apart(wanted, row.run(match.arranged(parameter)))
                if error < SAME:
                    found.append(Match(term.name, row.name, order, error))
    return found


@dataclass(frozen=True)
class Matching:
    """What was found of all terms of a layer."""

    matches: list[Match]
    problems: list[str]

    @property
    def error(self) -> float:
        """The largest of all."""
        return max((match.error for match in self.matches), default=0.0)


def match_terms(
    terms: Sequence[Term], rows: Sequence[Term], blocks: int, generator: torch.Generator
) -> Matching:
    """Find the row of each term; each term should have one row, and each row one term."""
    matches, problems = [], []
    for term in terms:
        found = find_rows(term, rows, blocks, generator)
        if len(found) != 1:
            names = ", ".join(match.row for match in found) or "none"
            problems.append(f"term {term.name} has {len(found)} rows: {names}")
        matches += found
    counts = Counter(match.row for match in matches)
    problems += [
        f"row {row.name} is of {counts[row.name]} terms" for row in rows if counts[row.name] != 1
    ]
    return Matching(matches, problems)


# --------------------------------------------------------------------------------------- layers


def to_theirs(authors: Authors, batch: WeightBatch) -> Any:
    """Weights as their layers read them: for each name a list over blocks."""
    lists = {
        theirs: [batch[ours][:, :, block] for block in range(batch.blocks)]
        for ours, theirs in NAMES.items()
    }
    return authors.space.AttentionWeightSpaceFeatures(**lists)


def outputs(made: Any) -> dict[str, Tensor]:
    """What a layer of either side gives, by our names and with our axes."""
    if isinstance(made, Tensor):
        return {"I": made}
    if isinstance(made, WeightBatch):
        return dict(made.tensors)
    return {ours: torch.stack(list(getattr(made, theirs)), 2) for ours, theirs in NAMES.items()}


@dataclass(frozen=True)
class Pair:
    """A layer of theirs and one of ours, of the same shape.

    Attributes:
        authors: Their code.
        theirs: Their layer; of the invariant kind it ends before its norms.
        ours: Our layer.
    """

    authors: Authors
    theirs: nn.Module
    ours: RowLayer

    @staticmethod
    def make(
        authors: Authors, kind: str, spec: BlockSpec, channels: tuple[int, int], init: str
    ) -> "Pair":
        """A pair of the kind "equivariant" or "invariant"."""
        seen = to_theirs(authors, WeightBatch.random(spec, networks=1, blocks=BLOCKS))
        shape = authors.space.attention_network_spec_from_wsfeat(seen, set_all_dims=True)
        c, e = channels
        theirs: nn.Module
        ours: RowLayer
        if kind == "equivariant":
            theirs = authors.layers.TransformersLinear(shape, *channels, init_type=init)
            ours = EquivariantLayer(spec, blocks=BLOCKS, inputs=c, outputs=e)
        else:
            theirs = authors.layers.TransformersInv(
                shape, *channels, init_type=init, layer_norm=False
            )
            ours = InvariantLayer(spec, blocks=BLOCKS, inputs=c, outputs=e)
        return Pair(authors, theirs, ours)

    def double(self) -> "Pair":
        """Both in float64."""
        return Pair(self.authors, self.theirs.double(), self.ours.double())

    def run_theirs(self, batch: WeightBatch) -> dict[str, Tensor]:
        """Their outputs."""
        return outputs(self.theirs(to_theirs(self.authors, batch)))

    def run_ours(self, batch: WeightBatch) -> dict[str, Tensor]:
        """Our outputs."""
        made = self.ours(batch)
        return outputs(made.transpose(1, 2).flatten(1) if isinstance(made, Tensor) else made)

    def their_terms(self) -> dict[str, list[nn.Parameter]]:
        """For each term its parameter in every block."""
        return terms_of(self.authors, self.theirs)

    def terms(self, batch: WeightBatch) -> tuple[list[Term], list[Term]]:
        """Terms and rows, to be tried on a batch; all parameters of both are 0 from now on."""
        for parameter in (*self.theirs.parameters(), *self.ours.parameters()):
            parameter.requires_grad_(False).zero_()

        def trying(places: Sequence[Tensor], run: Callable[[WeightBatch], Tensors]) -> Any:
            def tried(parameter: Tensor) -> Tensors:
                for place, numbers in zip(places, parameter, strict=True):
                    place.copy_(numbers)
                made = run(batch)
                for place in places:
                    place.zero_()
                return made

            return tried

        theirs = [
            Term(name, tuple(places[0].shape), trying(places, self.run_theirs))
            for name, places in self.their_terms().items()
        ]
        ours = [
            Term(name, tuple(view.shape[1:]), trying(list(view), self.run_ours))
            for name, view in our_rows(self.ours, data).items()
        ]
        return theirs, ours


def terms_of(authors: Authors, layer: nn.Module) -> dict[str, list[nn.Parameter]]:
    """For each term of a layer of theirs its parameter in every block."""
    found: dict[str, list[nn.Parameter]] = {}
    for name, module in layer.named_children():
        if isinstance(module, authors.layers.EinsumLayer):
            numbered = re.fullmatch(r"layer_\d+_(.+)", name)
            assert numbered, f"{name} is not a name of a term"
            found.setdefault(numbered[1], []).append(module.weight)
    return found


Values = Callable[[nn.Parameter], Tensor]


def their_rows(
    authors: Authors, layer: nn.Module, matching: Matching, values: Values
) -> dict[str, Tensor]:
    """Numbers of their layer's parameters, for example gradients, under our names and axes."""
    terms = terms_of(authors, layer)
    return {
        match.row: match.arranged(torch.stack([values(one) for one in terms[match.term]]))
        for match in matching.matches
    }


def our_rows(layer: RowLayer, values: Values) -> dict[str, Tensor]:
    """The same of our layer: views. The paper's D' is 1, an axis that their layer does not have."""
    stored = {name: values(matrix) for name, matrix in layer.matrices.items()}
    rows = {row.name: layer.plan.row_parameter(row, stored) for row in layer.rows}
    if isinstance(layer, InvariantLayer):
        return {name: parameter.squeeze(2) for name, parameter in rows.items()}
    return rows


def data(parameter: nn.Parameter) -> Tensor:
    """The numbers of a parameter."""
    return parameter.detach()


def gradient(parameter: nn.Parameter) -> Tensor:
    """The gradient of a parameter."""
    assert parameter.grad is not None
    return parameter.grad


def copy(wanted: Tensors, places: Tensors) -> None:
    """Write numbers into views."""
    assert wanted.keys() == places.keys()
    for name, place in places.items():
        place.copy_(wanted[name])


def compare_layers(
    authors: Authors, matchings: Mapping[str, Matching], spec: BlockSpec, networks: int
) -> dict[str, float]:
    """Whole layers with the same parameters: outputs, and gradients of parameters and weights."""
    figures = {}
    for kind, channels in {"equivariant": (2, 3), "invariant": (3, 4)}.items():
        pair = Pair.make(authors, kind, spec, channels, "uniform").double()
        copy(
            their_rows(authors, pair.theirs, matchings[kind], data),
            our_rows(pair.ours, data),
        )
        batch = WeightBatch.random(
            spec, networks=networks, channels=channels[0], blocks=BLOCKS, dtype=torch.float64
        )
        sides = []
        for run in (pair.run_theirs, pair.run_ours):
            read = batch.map(lambda tensor: tensor.clone().requires_grad_())
            made = run(read)
            loss = sum((out * probe(out)).sum() for out in made.values())
            assert isinstance(loss, Tensor)
            loss.backward()
            grads = {name: tensor.grad for name, tensor in read.tensors.items()}
            sides.append((made, {n: g for n, g in grads.items() if g is not None}))
        (wanted, wanted_grads), (found, found_grads) = sides
        assert wanted_grads.keys() == found_grads.keys()
        figures[f"{kind}: outputs"] = apart(wanted, found)
        figures[f"{kind}: gradients of parameters"] = apart(
            their_rows(authors, pair.theirs, matchings[kind], gradient),
            our_rows(pair.ours, gradient),
        )
        figures[f"{kind}: gradients of weights"] = apart(wanted_grads, found_grads)
    return figures


def probe(out: Tensor) -> Tensor:
    """Random numbers of a shape, the same each time."""
    generator = torch.Generator().manual_seed(out.numel())
    return torch.randn(out.shape, generator=generator, dtype=out.dtype)


# ---------------------------------------------------------------------------------------- model


def random_nets(spec: BlockSpec, networks: int) -> NetBatch:
    """Networks as in the paper's zoo of MNIST: patches of 16 pixels, 10 classes."""
    D = spec.sizes["D"]

    def draw(*shape: int) -> Tensor:
        return torch.randn(networks, *shape, dtype=torch.float64)

    return NetBatch(
        WeightBatch.random(spec, networks=networks, blocks=BLOCKS, dtype=torch.float64),
        {"weight": draw(16, D), "bias": draw(D)},
        {"weight1": draw(D, D), "bias1": draw(D), "weight2": draw(D, 10), "bias2": draw(10)},
    )


def parts_to_theirs(nets: NetBatch) -> tuple[dict[str, list[Tensor]], dict[str, list[Tensor]]]:
    """Embedding and classifier as their model reads them: "n 1 out in" and "n 1 out"."""
    lists = []
    for part in (nets.embedding, nets.classifier):
        weights = [tensor.mT[:, None] for name, tensor in part.items() if "weight" in name]
        biases = [tensor[:, None] for name, tensor in part.items() if "bias" in name]
        lists.append({"weight": weights, "bias": biases})
    return lists[0], lists[1]


def run_model(authors: Authors, model: nn.Module, nets: NetBatch) -> Tensor:
    """Their predictions. Their code asks for a GPU in one place; here it is not needed."""
    embedding, classifier = parts_to_theirs(nets)
    with mock.patch.object(torch.Tensor, "cuda", lambda tensor, *_, **__: tensor):
        out: Tensor = model(
            embedding,
            authors.space.LinearWeightSpaceFeatures(classifier["weight"], classifier["bias"]),
            to_theirs(authors, nets.blocks),
        )
    return out.squeeze(1)


def their_model(authors: Authors, nets: NetBatch, channels: Sequence[int], mode: str) -> nn.Module:
    """Their model for such networks; `mode` is how it reads a classifier."""
    embedding, classifier = parts_to_theirs(nets)
    shapes = [
        authors.space.network_spec_from_wsfeat(
            authors.space.LinearWeightSpaceFeatures(part["weight"], part["bias"]),
            set_all_dims=True,
        )
        for part in (embedding, classifier)
    ]
    blocks = to_theirs(authors, nets.blocks)
    model: nn.Module = authors.model.InvariantNFN(
        *shapes,
        authors.space.attention_network_spec_from_wsfeat(blocks, set_all_dims=True),
        classifier_nfn_channels=[HIDDEN, HIDDEN],
        transformers_nfn_channels=list(channels),
        num_out_classify=HIDDEN,
        num_out_embedding=HIDDEN,
        num_out_encoder=HIDDEN,
        enc_mode="inv",
        cls_mode=mode,
        emb_mode="mlp",
    )
    return model.double()


def plain(module: nn.Module) -> list[nn.Linear | nn.LayerNorm]:
    """The Linear and LayerNorm modules in their order."""
    return [one for one in module.modules() if isinstance(one, nn.Linear | nn.LayerNorm)]


class Models:
    """Their model and ours, and which parameter is which."""

    def __init__(
        self, authors: Authors, matchings: Mapping[str, Matching], nets: NetBatch, channels: Any
    ) -> None:
        self.authors, self.matchings = authors, matchings
        self.theirs = their_model(authors, nets, channels, "mlp")
        self.ours = TransformerNFN(NFNConfig.of(nets, channels=tuple(channels))).double()
        self.columns = {part: self._columns(nets, part) for part in ("embedding", "classifier")}
        copy(self.their_values(data), self.our_values(data))

    def _columns(self, nets: NetBatch, part: str) -> Tensor:
        """At which column of theirs is each number that our first Linear of a part reads."""
        seen: list[Tensor] = []
        first = plain(getattr(self.theirs, f"{part}_layers"))[0]
        hook = first.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        with torch.no_grad():
            run_model(self.authors, self.theirs, nets[:1])
        hook.remove()
        theirs, ours = seen[0][0], nets[:1].flat(part)[0]
        columns: Tensor = theirs.argsort()[ours.argsort().argsort()]
        assert torch.equal(theirs[columns], ours), f"they read other numbers of the {part}"
        return columns

    def their_values(self, values: Values) -> dict[str, Tensor]:
        """Numbers of their parameters, under our names and axes."""
        found: dict[str, Tensor] = {}
        encoder: Any = self.theirs.encoder_layers
        kinds = {
            "equivariant": self.authors.layers.TransformersLinear,
            "invariant": self.authors.layers.TransformersInv,
        }
        norms: list[nn.LayerNorm | nn.Linear] = []
        for kind, of_kind in kinds.items():
            layers = [layer for layer in encoder if isinstance(layer, of_kind)]
            for number, layer in enumerate(layers):
                rows = their_rows(self.authors, layer, self.matchings[kind], values)
                found |= {f"{kind} {number} {name}": numbers for name, numbers in rows.items()}
                norms += plain(layer)
        after = [layer for layer in encoder if not isinstance(layer, tuple(kinds.values()))]
        found |= named("norm", norms, values)
        found |= named("encoder", [one for layer in after for one in plain(layer)], values)
        for part, columns in self.columns.items():
            found |= named(part, plain(getattr(self.theirs, f"{part}_layers")), values)
            found[f"{part} 0 weight"] = found[f"{part} 0 weight"][:, columns]
        found |= named("head", plain(self.theirs.final_classifier_head), values)
        # They put encoder, classifier and embedding side by side, we embedding before classifier.
        blocks = found["head 0 weight"].split(HIDDEN, dim=1)
        found["head 0 weight"] = torch.cat([blocks[0], blocks[2], blocks[1]], dim=1)
        return found

    def our_values(self, values: Values) -> dict[str, Tensor]:
        """The same of ours: views."""
        encoder = self.ours.encoder
        assert encoder is not None
        layers: dict[str, list[Any]] = {
            "equivariant": list(encoder.equivariant),
            "invariant": [encoder.invariant],
        }
        found = {
            f"{kind} {number} {name}": numbers
            for kind, some in layers.items()
            for number, layer in enumerate(some)
            for name, numbers in our_rows(layer, values).items()
        }
        found |= named("norm", plain(encoder.block_norms), values)
        found |= named("encoder", plain(encoder.head), values)
        for part in self.columns:
            found |= named(part, plain(getattr(self.ours, part)), values)
        return found | named("head", plain(self.ours.head), values)


def named(
    part: str, modules: Sequence[nn.Linear | nn.LayerNorm], values: Values
) -> dict[str, Tensor]:
    """Numbers of the parameters of modules, by part and place."""
    return {
        f"{part} {number} {name}": values(parameter)
        for number, module in enumerate(modules)
        for name, parameter in module.named_parameters()
    }


def count(model: nn.Module) -> int:
    """How many numbers a model learns."""
    return sum(parameter.numel() for parameter in model.parameters())


def compare_models(
    authors: Authors, matchings: Mapping[str, Matching], spec: BlockSpec, networks: int
) -> tuple[dict[str, float], dict[str, int]]:
    """Differences of predictions, gradients and training of both models; and counts of them."""
    nets = random_nets(spec, networks)
    models = Models(authors, matchings, nets, [10])
    more = [random_nets(spec, networks) for _ in range(1, STEPS)]
    start = {name: numbers.clone() for name, numbers in models.our_values(data).items()}
    optimizers = (
        authors.utils.make_optimizer("adam", lr=1e-3, wd=0, model=models.theirs),
        torch.optim.Adam(models.ours.parameters(), lr=1e-3),
    )
    figures: dict[str, float] = {}
    losses = []
    for step, some in enumerate([nets, *more]):
        accuracy = torch.rand(networks, dtype=torch.float64)
        predicted, logits = run_model(authors, models.theirs, some), models.ours(some)
        pair = (
            F.binary_cross_entropy(predicted, accuracy),
            F.binary_cross_entropy_with_logits(logits, accuracy),
        )
        for optimizer, loss in zip(optimizers, pair, strict=True):
            optimizer.zero_grad()
            loss.backward()
        if step == 0:
            figures["outputs"] = apart({"": predicted}, {"": logits.sigmoid()})
            figures["gradients"] = apart(models.their_values(gradient), models.our_values(gradient))
        for optimizer in optimizers:
            optimizer.step()
        losses.append([loss.item() for loss in pair])
    theirs, ours = torch.tensor(losses, dtype=torch.float64).unbind(1)
    with torch.no_grad():
        predicted, logits = run_model(authors, models.theirs, nets), models.ours(nets)
    figures["losses"] = apart({"": theirs}, {"": ours})
    figures["trained: outputs"] = apart({"": predicted}, {"": logits.sigmoid()})
    trained = models.our_values(data)
    figures["trained: parameters"] = apart(models.their_values(data), trained)
    counts = {
        "parameters, theirs": count(models.theirs),
        "parameters, ours": count(models.ours),
        "parameters, theirs in the form hnps, not compared": count(
            their_model(authors, nets, [10], "hnps")
        ),
        "tensors of parameters": len(trained),
        "of them changed by training": sum(
            not torch.equal(numbers, start[name]) for name, numbers in trained.items()
        ),
    }
    return figures, counts


# ---------------------------------------------------------------------------------------- speed


def time_layers(authors: Authors, spec: BlockSpec, seconds: float) -> dict[str, dict[str, float]]:
    """Milliseconds of forward and backward of 16 networks, float32, in turns: medians."""
    cases = {
        "equivariant, 1 to 10 channels": ("equivariant", (1, 10)),
        "equivariant, 10 to 10 channels": ("equivariant", (10, 10)),
        "invariant, 10 to 10 channels": ("invariant", (10, 10)),
    }
    figures = {}
    for case, (kind, channels) in cases.items():
        pair = Pair.make(authors, kind, spec, channels, "xavier_normal")
        batch = WeightBatch.random(spec, networks=16, channels=channels[0], blocks=BLOCKS)
        theirs = to_theirs(authors, batch.map(torch.clone))
        # Each side reads leaves in its own form, so that no conversion is timed.
        leaves = [*batch.tensors.values()]
        for name in NAMES.values():
            setattr(theirs, name, [tensor.contiguous() for tensor in getattr(theirs, name)])
            leaves += getattr(theirs, name)
        for leaf in leaves:  # after another layer a gradient is wanted
            leaf.requires_grad_(channels[0] > 1)
        sides = {"theirs": (pair.theirs, theirs), "ours": (pair.ours, batch)}
        times: dict[str, list[float]] = {side: [] for side in sides}
        end = time.perf_counter() + seconds
        while time.perf_counter() < end or len(times["ours"]) < 7:
            for side, (layer, read) in sides.items():
                for leaf in (*leaves, *layer.parameters()):
                    leaf.grad = None
                times[side].append(milliseconds(layer, read))
        medians = {side: statistics.median(values[2:]) for side, values in times.items()}
        figures[case] = medians | {"ratio": medians["theirs"] / medians["ours"]}
    return figures


def milliseconds(layer: nn.Module, read: Any) -> float:
    """The time of one forward and backward pass."""
    begin = time.perf_counter()
    made = layer(read)
    if isinstance(made, Tensor):
        tensors = [made]
    elif isinstance(made, WeightBatch):
        tensors = list(made.tensors.values())
    else:
        tensors = [tensor for name in NAMES.values() for tensor in getattr(made, name)]
    torch.autograd.backward(torch.stack([tensor.sum() for tensor in tensors]).sum())
    return 1e3 * (time.perf_counter() - begin)


# --------------------------------------------------------------------------------------- report


def show_terms(matchings: Mapping[str, Matching], console: Console) -> None:
    """Which term is which row."""
    table = Table("layer", "their term", "our row", "axes", "difference")
    for kind, matching in matchings.items():
        for match in matching.matches:
            order = " ".join(map(str, match.order))
            table.add_row(kind, match.term, escape(match.row), order, f"{match.error:.1e}")
    console.print(table)


def lines(report: Mapping[str, Any]) -> Iterator[tuple[str, str, str, str, bool]]:
    """Section, what, figure, target and whether it is met."""
    for kind, found in report["terms"].items():
        good = not found["problems"] and found["difference"] <= TARGETS["terms"]
        what = f"{kind}: {found['terms']} terms, {found['rows']} rows"
        yield "terms", what, f"{found['difference']:.1e}", f"{TARGETS['terms']:.0e}", good
    for what, figure in report["layers"].items():
        good = figure <= TARGETS["layers"]
        yield "layers", what, f"{figure:.1e}", f"{TARGETS['layers']:.0e}", good
    for what, figure in report["model"].items():
        target = TARGETS["training" if what.startswith("trained") else "model"]
        yield "model", what, f"{figure:.1e}", f"{target:.0e}", figure <= target
    for what, times in report["speed"].items():
        figure = f"{times['theirs']:.1f} / {times['ours']:.1f} ms = {times['ratio']:.1f}"
        yield "speed", what, figure, f"{TARGETS['speed']:.0f}", times["ratio"] >= TARGETS["speed"]


def measure(authors: Authors, *, quick: bool, console: Console) -> dict[str, Any]:
    """All sections."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    spec, networks = (QUICK, 4) if quick else (FULL, 16)
    matchings, terms = {}, {}
    for kind, channels in {"equivariant": (2, 3), "invariant": (2, 3)}.items():
        batch = WeightBatch.random(
            SMALL, networks=2, channels=2, blocks=BLOCKS, generator=generator, dtype=torch.float64
        )
        pair = Pair.make(authors, kind, SMALL, channels, "uniform").double()
        theirs, ours = pair.terms(batch)
        found = matchings[kind] = match_terms(theirs, ours, BLOCKS, generator)
        terms[kind] = {
            "terms": len(theirs),
            "rows": len(ours),
            "difference": found.error,
            "problems": found.problems,
        }
    show_terms(matchings, console)
    report: dict[str, Any] = {"commit": authors.commit, "quick": quick, "targets": TARGETS}
    report["terms"] = terms
    if problems := [problem for found in matchings.values() for problem in found.problems]:
        console.print("No layers are compared:", *problems, sep="\n", markup=False)
        return report | {"layers": {}, "model": {}, "speed": {}, "ok": False}
    report["layers"] = compare_layers(authors, matchings, spec, networks)
    report["model"], report["counts"] = compare_models(authors, matchings, spec, networks)
    report["speed"] = time_layers(authors, spec, 0.5 if quick else 5)
    report["ok"] = all(good for *_, good in lines(report))
    return report


def main() -> int:
    """Compare, and print tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT", help="of the authors' code")
    parser.add_argument("--quick", action="store_true", help="smaller networks, fewer of them")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    options = parser.parse_args()
    torch.set_num_threads(1)
    try:
        authors = load(options.checkout)
    except MissingError as error:
        print(error, file=sys.stderr)
        return 2
    console = Console(width=100)
    report = measure(authors, quick=options.quick, console=console)
    table = Table("", "compared", "difference or time", "target", "met")
    for *cells, good in lines(report):
        table.add_row(*cells, "yes" if good else "NO")
    console.print(table)
    for name, number in report.get("counts", {}).items():
        print(f"model: {name}: {number:,}")
    if authors.commit != COMMIT:
        print(f"the checkout is at {authors.commit}; the documented figures are of {COMMIT}")
    if options.json:
        print(json.dumps(report))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
