"""What GPT-2, BERT and ViT share."""

from transformer_nfn.checkpoints.family import Matrix, linear
from transformer_nfn.space import RELU, RESIDUAL, Block


def declared(activation: str) -> Block:
    """With ReLU each hidden neuron has a positive scale; with others it has none."""
    return RELU if activation == "relu" else RESIDUAL


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
