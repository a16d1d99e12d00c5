"""What GPT-2, BERT, ViT and a zoo's nets share."""

from typing import Any

from transformer_nfn.checkpoints.family import Matrix, linear
from transformer_nfn.checkpoints.settings.values import Settings
from transformer_nfn.space import RELU, RESIDUAL, Attention, Block, Half, Mlp, NormPlace, compose


def plain_block(
    settings: Settings,
    place: NormPlace = NormPlace.BEFORE,
    *,
    skip: bool = True,
    raw: bool = False,
    **more: Any,
) -> Block:
    """Attention with biases and a plain MLP, with one kind of norm in one place.

    Args:
        settings: Of a file.
        place: Where the norms stand.
        skip: Whether what is written is added to the stream.
        raw: Whether both read the stream as it is.
        more: Further fields of the attention.
    """
    attention = Attention(causal=settings.causal, windows=settings.windows, **more)
    mlp = Mlp(settings.activation, scales=True, scaled=attention.scaled)
    return compose(
        # With ReLU each hidden neuron has a positive scale; with others it has none.
        (RELU if mlp.homogeneous else RESIDUAL).name,
        *(Half(part, settings.norm, place, skip, raw=raw) for part in (attention, mlp)),
    )


def post_norm_block(settings: Settings) -> Block:
    """The same with norms after each sum."""
    return plain_block(settings, NormPlace.AFTER_SUM)


def block_without_skips(settings: Settings) -> Block:
    """The same where what is written takes the place of the stream."""
    return plain_block(settings, skip=False)


def projection_matrices(mlp: str) -> tuple[Matrix, ...]:
    """The matrices of a block of OPT or SigLIP, which differ in what stands before their MLP."""
    return (
        linear("self_attn.q_proj", "Q", "h k x"),
        linear("self_attn.k_proj", "K", "h k x"),
        linear("self_attn.v_proj", "V", "h v x"),
        linear("self_attn.out_proj", "O", "x h v", "bO"),
        linear(f"{mlp}fc1", "A", "a x", "bA"),
        linear(f"{mlp}fc2", "B", "x a", "bB"),
    )


def encoder_matrices(attention: str) -> tuple[Matrix, ...]:
    """The matrices of a block of BERT or ViT, which differ in what their attention is called."""
    return (
        linear(f"{attention}.query", "Q", "h k x"),
        linear(f"{attention}.key", "K", "h k x"),
        linear(f"{attention}.value", "V", "h v x"),
        linear("attention.output.dense", "O", "x h v", "bO"),
        linear("intermediate.dense", "A", "a x", "bA"),
        linear("output.dense", "B", "x a", "bB"),
    )
