"""What GPT-2, BERT and ViT share."""

from transformer_nfn.space import RELU, RESIDUAL, Block


def declared(activation: str) -> Block:
    """With ReLU each hidden neuron has a positive scale; with others it has none."""
    return RELU if activation == "relu" else RESIDUAL
