"""Keys of config.json as tables: which change the function, which must agree with the tensors.

Every key is one of three kinds. It matters: it goes to `Settings`, or has one value that is
supported, or must agree with the tensors. It is harmless. Or nobody knows what it does.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.settings.harmless import HARMLESS
from transformer_nfn.checkpoints.settings.values import Settings

#: The default of a key without which the function is not known.
REQUIRED: Any = object()
#: Activations of several names.
ACTIVATIONS: Mapping[str, str] = {
    "gelu_accurate": "gelu_new",
    "gelu_python": "gelu",
    "gelu_python_tanh": "gelu_new",
    "gelu_pytorch_tanh": "gelu_new",
    "swish": "silu",
}
_LARGEST = 2**31 - 1
#: Instead of the one value of a key: it may not be there at all, whatever it says.
ABSENT = "(absent)"
#: Values of a key that all say nothing.
_NOTHING: tuple[Any, ...] = (None, {}, [])


@dataclass(frozen=True)
class Key:
    """A key that changes the function of the same tensors.

    Attributes:
        name: The key.
        to: A field of `Settings`, `sizes.` and the name of a size, or `flags`.
        kind: int, float, str, bool, or list for a list of words.
        default: What the format says where the key is absent.
        null: Whether it may be null; it may where that is the default.
        least: The smallest integer that is allowed.
        beside: It counts only if a tensor's name begins so; else nothing reads it.
        also: Other names that the format has for it.
        same: Values that mean the same as another.
        asked: No key of the format: only the user may say it, since no loader reads it.
    """

    name: str
    to: str
    kind: type
    default: Any = REQUIRED
    null: bool = False
    least: int = 1
    beside: str = ""
    also: tuple[str, ...] = ()
    same: Mapping[str, str] = field(default_factory=dict)
    asked: bool = False


def padding(default: int | None) -> Key:
    """The word that a score does not read, with its default."""
    return Key("pad_token_id", "flags", int, default, null=True, least=-1, beside="score.")


@dataclass(frozen=True)
class Joint:
    """Keys that say one thing together.

    Attributes:
        names: All of them.
        to: A field of `Settings`; of flags the one with the first of the names.
        read: What they say, of a config and the number of blocks.
    """

    names: tuple[str, ...]
    to: str
    read: Callable[[Mapping[str, Any], int], Any]


@dataclass(frozen=True)
class Biases:
    """Biases inside a block that a model has or has not.

    Attributes:
        names: Of the tensors, after the block's.
        there: Whether it has them, where no key says it.
        key: What says it, if anything does.
    """

    names: tuple[str, ...]
    there: bool
    key: str | None = None


@dataclass(frozen=True)
class Keys:
    """What each key of a model's config.json does.

    Attributes:
        fixed: Fields of `Settings` that no key says.
        matter: Keys that go to `Settings`, one by one.
        joint: Keys that go there together.
        supported: Keys that may have one value only; another is another function.
        sizes: Keys that must agree with the tensors: a size of the block, `blocks`, or a tensor
            outside the blocks and its axis.
        blocks: The number of blocks where config.json is there and does not say it.
        biases: Which biases there must be.
        harmless: Beside those that are so everywhere.
        classes: What the names of its classes in `transformers` begin with, if it has any there.
        refused: Endings of names of classes that are not read.
    """

    fixed: Mapping[str, Any]
    matter: tuple[Key, ...]
    joint: tuple[Joint, ...] = ()
    supported: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, str | tuple[str, int]] = field(default_factory=dict)
    blocks: int | None = None
    biases: tuple[Biases, ...] = ()
    harmless: frozenset[str] = frozenset()
    classes: str | None = None
    refused: tuple[str, ...] = ()

    @property
    def heads(self) -> str | None:
        """The key that says how many heads there are."""
        return next((key.name for key in self.matter if key.to == "heads"), None)

    @property
    def _own(self) -> set[str]:
        """Keys that this table says something of."""
        names = {n for key in self.matter if not key.asked for n in (key.name, *key.also)}
        names |= {name for joint in self.joint for name in joint.names}
        names |= {bias.key for bias in self.biases if bias.key}
        return names | self.harmless | {*self.supported, *self.sizes}

    @property
    def only(self) -> Mapping[str, Any]:
        """Keys that may have one value: its own, and of all others what this table does not say."""
        own = self._own
        if self.fixed.get("causal") is False:  # it is the masks of decoders that ask for it
            own.add("is_causal")
        return {k: v for k, v in SUPPORTED.items() if k not in own} | dict(self.supported)

    @property
    def known(self) -> frozenset[str]:
        """All keys whose meaning is known."""
        return HARMLESS | self._own | {*self.only, *SIZES}

    @property
    def sayable(self) -> frozenset[str]:
        """All settings that the user may give: these, and those that only the user may say."""
        return self.known | {key.name for key in self.matter if key.asked}


#: In all families: keys of `transformers` that would make another network of the same file, among
#: them those that the code for masks, positions and labels of all models looks for.
SUPPORTED: Mapping[str, Any] = {
    "attention_chunk_size": None,
    "attribute_map": ABSENT,
    "configuration_files": None,
    "fusion_config": None,
    "is_causal": True,
    "is_encoder_decoder": False,
    "layer_types": None,
    "per_layer_config": None,
    "pruned_heads": {},
    "quantization_config": None,
    "sliding_window": None,
    "token_classification_bias": True,
    "transformers_weights": None,
}
#: In all families: keys that must agree with the tensors.
SIZES: Mapping[str, str] = {"head_dim": "D_k"}


def usual_sizes(words: str) -> dict[str, str | tuple[str, int]]:
    """Keys of sizes that most formats have, with the tensor that has a row for each word."""
    return {
        "hidden_size": "D",
        "intermediate_size": "D_A",
        "num_hidden_layers": "blocks",
        "vocab_size": (words, 0),
    }


def read_settings(
    keys: Keys,
    config: Mapping[str, Any],
    names: Collection[str],
    blocks: int,
    options: Mapping[str, Any],
) -> Settings:
    """What a config says of a file.

    Args:
        keys: The table of its model.
        config: Its config.json.
        names: Of its tensors.
        blocks: How many it has.
        options: What the user says, which comes before the config.

    Raises:
        CheckpointError: If a setting is missing, of another kind, or not supported.
    """
    _refuse(config, keys.only)
    found: dict[str, Any] = dict(keys.fixed)
    sizes: list[tuple[str, int]] = []
    flags: list[tuple[str, Any]] = []
    for key in keys.matter:
        if key.asked and key.name in config and key.name not in options:
            raise CheckpointError(
                f"config.json has {key.name}={config[key.name]!r:.40}, which no loader reads; if "
                f"the file is such a one, say --set {key.name}={config[key.name]!s:.40}"
            )
        if key.beside and not any(name.startswith(key.beside) for name in names):
            continue
        value = setting(options if key.asked else config, key)
        if key.to.startswith("sizes."):
            sizes.append((key.to.removeprefix("sizes."), value))
        elif key.to == "flags":
            if value != key.default:
                flags.append((key.name, value))
        else:
            found[key.to] = value
    for joint in keys.joint:
        value = joint.read(config, blocks)
        if joint.to == "flags":
            flags.append((joint.names[0], value))
        else:
            found[joint.to] = value
    if found.get("groups") is None:
        found["groups"] = found["heads"]
    return Settings(**found, sizes=tuple(sizes), flags=tuple(flags))


def setting(config: Mapping[str, Any], key: Key) -> Any:
    """A value of config.json, checked."""
    stated = {name: config[name] for name in (key.name, *key.also) if name in config}
    if len(set(map(repr, stated.values()))) > 1:
        words = " and ".join(f"{name}={value!r:.40}" for name, value in stated.items())
        raise CheckpointError(f"config.json says {words}, which mean the same; remove one of them")
    if not stated:
        if key.default is not REQUIRED:
            return key.same.get(key.default, key.default) if key.kind is str else key.default
        raise CheckpointError(
            f"{key.name} is not known: it stands in no tensor; give the folder's config.json with "
            f"--config, or --set {key.name}=…"
        )
    value = next(iter(stated.values()))
    if value is None and (key.null or key.default is None):
        return None
    if key.kind is float and type(value) is int:
        value = as_float(value, key.name)
    fits = type(value) is key.kind  # bool is an int to isinstance; here it is not
    if key.kind is int:
        fits = fits and key.least <= value <= _LARGEST
    if key.kind is list and fits:
        fits = all(isinstance(word, str) for word in value)
        value = tuple(value)
    if not fits:
        raise CheckpointError(
            f"{key.name} in the config should be {key.kind.__name__}"
            f"{f' from {key.least}' if key.kind is int else ''}, not {value!r:.60}"
        )
    return key.same.get(value, value) if key.kind is str else value


def as_float(value: int | float, name: str) -> float:
    """A number of the config as a float; there are integers that are larger than any."""
    try:
        return float(value)
    except OverflowError:
        raise CheckpointError(f"{name} in the config is too large for a float") from None


def _refuse(config: Mapping[str, Any], supported: Mapping[str, Any]) -> None:
    """Stop at settings that make another function of the same tensors than the one we know."""
    for name, value in supported.items():
        if value == ABSENT and name in config:
            raise CheckpointError(f"config.json has {name}={config[name]!r:.60}; remove that key")
        stated = config.get(name, value)
        # 0 and False are equal; null and an empty table or list say nothing.
        same = type(stated) is type(value) and stated == value
        if not same and not (value in _NOTHING and stated in _NOTHING):
            raise CheckpointError(
                f"config.json has {name}={stated!r:.60}; only {value!r} is supported"
            )
