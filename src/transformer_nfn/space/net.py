"""A whole network: what stands before and after its blocks, and the function of the zoo's nets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from transformer_nfn.space.container import Container, Picks, picked_networks
from transformer_nfn.space.errors import ShapeError
from transformer_nfn.space.folding import NormChoice
from transformer_nfn.space.functions import layer_norm, per_net, rms_norm, sine_positions
from transformer_nfn.space.layouts import (
    TORCH_ENCODER,
    Encoder,
    Layout,
    StateDict,
    check_alike,
    find_encoder,
    plain_numbers,
)
from transformer_nfn.space.parts.half import NormPlace
from transformer_nfn.space.weights import WeightBatch


@dataclass(frozen=True, eq=False)
class NetBatch(Container):
    """n networks: their blocks, and the tensors of embedding and classifier, each "n …".

    The paper's nets: embedding ``weight: n p x``, ``bias: n x`` for patches of p pixels, none for
    word vectors; classifier ``weight1: n x u``, ``bias1: n u``, ``weight2: n u o``, ``bias2: n o``.
    """

    blocks: WeightBatch
    embedding: Mapping[str, Tensor] = field(default_factory=dict)
    classifier: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check that all parts are of the same networks."""
        for part in ("embedding", "classifier"):
            tensors = MappingProxyType(dict(getattr(self, part)))
            for name, tensor in tensors.items():
                if tensor.shape[:1] != (self.blocks.networks,):
                    raise ShapeError(
                        f"{part} {name} has shape {tuple(tensor.shape)}, the blocks are of "
                        f"{self.blocks.networks} networks"
                    )
            object.__setattr__(self, part, tensors)

    def flat(self, part: str) -> Float[Tensor, "n weights"]:
        """All numbers of ``"embedding"`` or ``"classifier"`` in one row for each network."""
        tensors: Mapping[str, Tensor] = getattr(self, part)
        if not tensors:
            raise ShapeError(f"these networks have no {part}")
        return torch.cat([tensor.flatten(1) for tensor in tensors.values()], dim=1)

    @staticmethod
    def from_state_dicts(
        dicts: Iterable[StateDict],
        layout: Layout = TORCH_ENCODER,
        *,
        heads: int,
        activation: str,
        post_norm: bool,
        norms: NormChoice = "fold",
        prefix: str = "",
        embedding: str | None = None,
        classifier: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "NetBatch":
        """Networks of your own, one state dict each; all of one shape.

        Tensors outside the blocks are left out, a last norm for example, unless they belong to the
        embedding or the classifier. `apply_blocks` takes the ε of the norms as an argument.

        Examples:
            >>> import torch
            >>> from transformer_nfn.space import NetBatch
            >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, norm_first=True)
            >>> nets = [torch.nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)] * 4
            >>> settings = {"heads": 2, "activation": "relu", "post_norm": False}
            >>> NetBatch.from_state_dicts([net.state_dict() for net in nets], **settings).blocks
            WeightBatch(n=4, c=1, l=3, BlockSpec(residual, D=8, heads=2, D_k=4, D_v=4, D_A=16))

        Args:
            dicts: May be made one by one: only the batch is kept.
            layout: The names of a block's tensors; those of `torch.nn.TransformerEncoder`.
            heads: How many an attention has; no tensor says so.
            activation: Between the layers of the MLP, for what the blocks compute; no tensor says
                so either.
            post_norm: Whether norms stand after the sum with the stream (torch's default), not
                before what reads it (``norm_first=True``).
            norms: Fold scales and shifts of norms into what reads them, which only norms before
                it allow; keep them as tensors that layers read; or drop them.
            prefix: Stands before the names of the layout, ``"encoder."`` for example.
            embedding: All tensors whose names begin with it are the embedding.
            classifier: The same for the classifier.
            dtype: Of the batch, whatever those of the tensors.

        Raises:
            ShapeError: If a tensor is missing or of another shape, or one in a block is unknown.
        """
        if isinstance(dicts, Mapping):
            raise ShapeError("this is one state dict; give a list of them")
        nets: list[NetBatch] = []
        for number, state in enumerate(dicts):
            try:
                batch = layout.read(
                    state,
                    heads=heads,
                    activation=activation,
                    post_norm=post_norm,
                    norms=norms,
                    prefix=prefix,
                    dtype=dtype,
                )
                parts = [_beginning_with(state, part, dtype) for part in (embedding, classifier)]
                nets.append(NetBatch(batch, *parts))
                check_alike(nets[0].blocks, batch)
            except ShapeError as error:
                raise ShapeError(f"network {number}: {error}") from None
        if not nets:
            raise ShapeError("there are no state dicts")
        return NetBatch.cat(nets)

    @staticmethod
    def from_modules(
        modules: Iterable[nn.Module],
        *,
        norms: NormChoice = "fold",
        embedding: str | None = None,
        classifier: str | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> "NetBatch":
        """Networks of your own that have one `torch.nn.TransformerEncoder` somewhere in them.

        Heads, activation and the place of norms are the encoder's; everything else is as in
        `from_state_dicts`.

        Raises:
            ShapeError: If a module has no such encoder or several, or they are not alike.
        """
        if isinstance(modules, nn.Module) and not isinstance(modules, nn.ModuleList):
            raise ShapeError("this is one module; give a list of them")
        found: list[tuple[Encoder, nn.Module]] = [(find_encoder(m), m) for m in modules]
        if not found:
            raise ShapeError("there are no modules")
        first = found[0][0]
        for number, (encoder, _) in enumerate(found):
            if encoder != first:
                raise ShapeError(f"module {number} has {encoder}, module 0 has {first}")
        return NetBatch.from_state_dicts(
            (module.state_dict() for _, module in found),
            **first._asdict(),
            norms=norms,
            embedding=embedding,
            classifier=classifier,
            dtype=dtype,
        )

    @classmethod
    def cat(cls, batches: Sequence["NetBatch"]) -> "NetBatch":
        """Put the networks of several batches together."""
        if not batches:
            raise ShapeError("there are no batches to put together")
        for part in ("embedding", "classifier"):
            found = [set(getattr(net, part)) for net in batches]
            if any(names != found[0] for names in found):
                names = ", ".join(sorted(set.union(*found) - set.intersection(*found)))
                raise ShapeError(f"only some of these networks have {names} in their {part}")
        return NetBatch(
            WeightBatch.cat([net.blocks for net in batches]),
            _joined([net.embedding for net in batches]),
            _joined([net.classifier for net in batches]),
        )

    @property
    def networks(self) -> int:
        """n, how many networks."""
        return self.blocks.networks

    def __len__(self) -> int:
        return self.networks

    def __getitem__(self, key: Picks) -> "NetBatch":
        """Some of the networks, by a number, a slice, a mask or a list of numbers."""
        picked = picked_networks(key, self.networks)
        return NetBatch(
            self.blocks.select(networks=picked),
            {name: tensor[picked] for name, tensor in self.embedding.items()},
            {name: tensor[picked] for name, tensor in self.classifier.items()},
        )

    def __repr__(self) -> str:
        parts = [
            f"{part} of {sum(tensor[0].numel() for tensor in tensors.values()):,}"
            for part, tensors in (("embedding", self.embedding), ("classifier", self.classifier))
            if tensors and self.networks
        ]
        return ", ".join([f"NetBatch({self.blocks!r}", *parts]) + ")"

    def _children(self) -> tuple[list[Any], Any]:
        return [self.blocks, dict(self.embedding), dict(self.classifier)], None

    @classmethod
    def _of_children(cls, children: Sequence[Any], context: Any) -> "NetBatch":
        blocks, embedding, classifier = children
        return cls._unchecked(blocks=blocks, embedding=embedding, classifier=classifier)

    def __reduce__(self) -> tuple[Any, ...]:
        return NetBatch, (self.blocks, dict(self.embedding), dict(self.classifier))


def _beginning_with(state: StateDict, start: str | None, dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors "1 …" whose names begin so, without that."""
    if start is None:
        return {}
    found = {
        name.removeprefix(start): plain_numbers(name, tensor, dtype).unsqueeze(0)
        for name, tensor in state.items()
        if name.startswith(start)
    }
    if not found:
        raise ShapeError(f"no tensor of the state dict has a name that begins with {start!r}")
    return found


def _joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    for number, part in enumerate(parts):
        for name, tensor in part.items():
            if tensor.shape[1:] != parts[0][name].shape[1:]:
                raise ShapeError(
                    f"{name} is {tuple(tensor.shape[1:])} in batch {number}, "
                    f"{tuple(parts[0][name].shape[1:])} in the first"
                )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def apply_blocks(
    batch: WeightBatch, tokens: Float[Tensor, "n *s t x"], eps: float = 1e-5
) -> Float[Tensor, "n *s t x"]:
    """Send each network's own tokens, of one or more sequences, through its blocks, in order.

    Raises:
        ShapeError: If the block declares no function, or the batch has more than one channel.
    """
    function = batch.spec.block.function
    if function is None:
        raise ShapeError(
            f"block {batch.spec.block.name!r} has no function; pass one to declare(function=…)"
        )
    if batch.channels != 1:
        raise ShapeError(f"{batch.channels} channels are features, not a network; it has one")
    for number in range(batch.blocks):
        weights = {name: tensor[:, 0, number] for name, tensor in batch.tensors.items()}
        tokens = function(weights, tokens, eps)
    return tokens


def apply_net(
    net: NetBatch,
    inputs: Float[Tensor, "n s t p"] | Float[Tensor, "s t p"],
    eps: float = 1e-5,
) -> Float[Tensor, "n s o"]:
    """Logits of the zoo's nets for s sequences of patches or word vectors for each network.

    Embedding (or word vectors as they are), fixed sine positions, the blocks, mean over tokens,
    Linear-ReLU-Linear. Where each half of a block has its norm before it, one more stands before
    the mean; where each has the norm that follows it, one more stands at the start.

    Args:
        net: The networks.
        inputs: Each network's own sequences, "n s t p", or the same for all of them, "s t p".
        eps: Of every LayerNorm.

    Raises:
        ShapeError: If the inputs do not fit, or the blocks are not composed of parts.
    """
    block = net.blocks.spec.block
    if not block.halves:
        raise ShapeError(
            f"block {block.name!r} does not say where its norms stand, so a whole net of it "
            "cannot be run; make it with compose(…)"
        )
    if not net.classifier:
        raise ShapeError("these networks have no classifier")
    tokens = _embed(net, inputs)
    first = block.halves[0]
    norm = layer_norm if first.centred else rms_norm
    if first.place is not NormPlace.BEFORE:
        tokens = norm(tokens, eps)
    tokens = tokens.expand(net.blocks.networks, *tokens.shape[-3:])  # n s t x
    tokens = apply_blocks(net.blocks, tokens, eps)
    if first.place is NormPlace.BEFORE:
        tokens = norm(tokens, eps)
    c = net.classifier
    hidden = per_net(tokens.mean(dim=2), c["weight1"], c["bias1"]).relu()
    return per_net(hidden, c["weight2"], c["bias2"])


def _embed(
    net: NetBatch, inputs: Float[Tensor, "*n s t p"]
) -> Float[Tensor, "n s t x"] | Float[Tensor, "s t x"]:
    """Tokens with their positions; they stay the same for all networks where they are."""
    networks, D = net.blocks.networks, net.blocks.spec.sizes["D"]
    width = net.embedding["weight"].shape[1] if net.embedding else D
    if inputs.shape[:-3] not in ((), (networks,)) or inputs.shape[-1] != width:
        raise ShapeError(
            f"inputs of {networks} networks are (n, s, t, p) = ({networks}, s, t, {width}), or "
            f"(s, t, {width}) if they are the same for all; got {tuple(inputs.shape)}"
        )
    positions = sine_positions(inputs.shape[-2], D).to(inputs)  # t x
    if not net.embedding:
        return inputs + positions
    shared = inputs.expand(networks, *inputs.shape[-3:])  # n s t p
    return per_net(shared, net.embedding["weight"], net.embedding["bias"]) + positions


def apply_paper_net(
    net: NetBatch, inputs: Float[Tensor, "n t p"], eps: float = 1e-5
) -> Float[Tensor, "n o"]:
    """`apply_net` for one sequence of patches or word vectors for each network."""
    return apply_net(net, inputs.unsqueeze(1), eps).squeeze(1)
