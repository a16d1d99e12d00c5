import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.checks import assert_loss_falls
from tests.strategies import batches, generator, seeds
from transformer_nfn.group import assert_invariant, random_element, relative_error
from transformer_nfn.layers import EquivariantLayer
from transformer_nfn.models import Encoder, NFNConfig, TransformerNFN
from transformer_nfn.space import PAPER, BlockSpec, NetBatch, ShapeError, WeightBatch

SPEC = BlockSpec(PAPER, D=32, heads=2, D_k=16, D_v=16, D_A=64)
PARTS = {"channels": (10,), "embedding": 544, "classifier": 1386}

ENCODER = [
    ((3,), 490_848),
    ((5,), 840_340),
    ((10,), 1_792_610),
    ((15,), 2_857_080),
    ((3, 3), 1_900_932),
    ((5, 5), 4_756_800),
    ((10, 10), 17_457_130),
    ((15, 15), 38_101_260),
]


def count(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(("channels", "parameters"), ENCODER)
def test_parameters_of_the_encoder(channels: tuple[int, ...], parameters: int) -> None:
    with torch.device("meta"):
        encoder = Encoder(SPEC, blocks=2, channels=channels, generator=generator(0))
    assert count(encoder) == parameters


@pytest.mark.parametrize(
    ("embedding", "classifier", "parameters"), [(544, 1386, 1_812_181), (None, 1188, 1_804_741)]
)
def test_parameters_of_the_model(embedding: int | None, classifier: int, parameters: int) -> None:
    """The paper's 1.812M for MNIST and 1.804M for AG News."""
    config = NFNConfig.of(SPEC, blocks=2, embedding=embedding, classifier=classifier)
    assert TransformerNFN(config).parameter_count == parameters


@pytest.mark.parametrize(("inputs", "parameters"), [(1, 1_567_640), (10, 15_664_520)])
def test_parameters_of_one_equivariant_layer(inputs: int, parameters: int) -> None:
    with torch.device("meta"):
        layer = EquivariantLayer(SPEC, blocks=2, inputs=inputs, outputs=10)
    assert layer.parameter_count == parameters


def nets(blocks: WeightBatch, seed: int) -> NetBatch:
    g = generator(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(blocks.networks, *shape, generator=g, dtype=blocks.dtype)

    embedding = {"weight": normal(3, 4), "bias": normal(4)}
    return NetBatch(blocks, embedding, {"weight1": normal(4, 2), "bias1": normal(2)})


@given(batches(channels=1), st.lists(st.integers(2, 4), min_size=1, max_size=3), seeds)
def test_the_model_is_invariant(batch: WeightBatch, channels: list[int], seed: int) -> None:
    """All declared blocks, 1 to 3 blocks, 1 to 3 equivariant layers, all three parts on."""
    config = NFNConfig.of(
        batch.spec,
        blocks=batch.blocks,
        channels=channels,
        embedding=16,
        classifier=10,
        width=2,
        seed=seed,
    )
    model = TransformerNFN(config).double()
    with torch.no_grad():
        assert_invariant(
            lambda u: model(nets(u, seed)), batch, generator=generator(seed), tolerance=1e-10
        )


@settings(max_examples=5)
@given(batches(channels=1), seeds)
def test_the_model_is_not_constant(batch: WeightBatch, seed: int) -> None:
    """Negative control: other weights give another number."""
    model = TransformerNFN(NFNConfig.of(batch.spec, blocks=batch.blocks, channels=(4,))).double()
    other = batch.map(lambda tensor: tensor.flip(-1) + 0.1)
    with torch.no_grad():
        assert relative_error(model(NetBatch(other)), model(NetBatch(batch))) > 1e-6


@pytest.mark.parametrize("off", [(), ("channels",), ("embedding",), ("classifier",)])
def test_parts_can_be_switched_off_singly(off: tuple[str, ...]) -> None:
    settings = {**PARTS, **dict.fromkeys(off)}
    model = TransformerNFN(NFNConfig.of(SPEC, blocks=2, **settings))
    assert model.head.in_features == 10 * (3 - len(off))
    batch = WeightBatch.random(SPEC, networks=2, blocks=2, generator=generator(0))
    net = NetBatch(batch, {"all": torch.randn(2, 544)}, {"all": torch.randn(2, 1386)})
    assert model(net).shape == (2,)


def test_networks_that_lack_a_part_are_refused() -> None:
    model = TransformerNFN(NFNConfig.of(SPEC, blocks=2, **PARTS))
    batch = WeightBatch.random(SPEC, networks=2, blocks=2, generator=generator(0))
    with pytest.raises(ShapeError, match="have no embedding"):
        model(NetBatch(batch))
    with pytest.raises(ShapeError, match="reads embeddings of 544 numbers, got 7"):
        model(NetBatch(batch, {"all": torch.zeros(2, 7)}))


def test_same_seed_same_model_and_the_global_generator_is_untouched() -> None:
    state = torch.random.get_rng_state()
    config = NFNConfig.of(SPEC, blocks=2, **PARTS, seed=0)
    first, second = TransformerNFN(config).state_dict(), TransformerNFN(config).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(torch.random.get_rng_state(), state)
    other = TransformerNFN(config.model_copy(update={"seed": 1})).state_dict()
    assert not torch.equal(first["head.weight"], other["head.weight"])


def test_configs_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="all parts are off"):
        NFNConfig.of(SPEC, blocks=2, channels=None)
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        NFNConfig.of(SPEC, blocks=2, chanels=(10,))
    with pytest.raises(ValueError, match="missing: D_A"):
        NFNConfig(block=PAPER.to_dict(), sizes={"D": 4, "heads": 2, "D_k": 2, "D_v": 2}, blocks=1)


def test_it_learns() -> None:
    """A few steps of training on a target that depends on QK bring the loss down."""
    spec = BlockSpec(PAPER, D=6, heads=2, D_k=3, D_v=3, D_A=8)
    batch = WeightBatch.random(spec, networks=64, blocks=2, generator=generator(0))
    target = batch.product("QK").diagonal(dim1=-2, dim2=-1).sum(-1).mean((1, 2)).sigmoid()
    model = TransformerNFN(NFNConfig.of(spec, blocks=2))
    assert_loss_falls(model, NetBatch(batch), target, rate=1e-3, steps=60)
    g = random_element(spec, blocks=2, generator=generator(1))
    with torch.no_grad():
        assert relative_error(model(NetBatch(g(batch))), model(NetBatch(batch))) < 1e-4
