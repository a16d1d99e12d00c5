"""What config.json says of rotary positions and of windows, which several keys say together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from transformer_nfn.checkpoints.errors import CheckpointError
from transformer_nfn.checkpoints.settings.keys import Joint, Key, as_float, setting
from transformer_nfn.space import Rope

ROPE = (
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "partial_rotary_factor",
    "max_position_embeddings",
    "original_max_position_embeddings",
)
WINDOWS = ("sliding_window", "use_sliding_window", "max_window_layers", "layer_types")
#: Kinds whose frequencies depend on the longest context, and on the one before it was made longer.
_BY_LONGEST = ("dynamic", "longrope", "yarn")
_BY_ORIGINAL = ("llama3", "longrope", "yarn")
_DEFAULTS = {"yarn": {"beta_fast": 32, "beta_slow": 1, "truncate": True}}
_KINDS = ("full_attention", "sliding_attention")
_LONGEST, _PART = "max_position_embeddings", "partial_rotary_factor"


def read_rope(
    config: Mapping[str, Any],
    longest: int,
    *,
    part: float | None = None,
    theta: float | None = None,
    interleaved: bool = False,
) -> Rope:
    """Rotary positions: one table, or rope_theta and rope_scaling as `transformers` wrote before 5.

    Args:
        config: What was read.
        longest: The format's default of max_position_embeddings.
        part: The format's default of how many coordinates turn; None where all do.
        theta: The format's default of rope_theta, if it has one.
        interleaved: Whether the coordinates 2j and 2j + 1 are a pair on disk.
    """
    if theta is not None and config.get("rope_theta") is None:
        config = {**config, "rope_theta": theta} if not _says_theta(config) else config
    given = [config[name] for name in ("rope_scaling", "rope_parameters") if config.get(name)]
    for table in given:
        if not isinstance(table, dict):
            raise CheckpointError(f"rope_parameters should be a table, not {table!r:.60}")
    found = [_rope(config, table, longest, part is not None) for table in given or [{}]]
    if any(rope != found[0] for rope in found):
        raise CheckpointError(
            "config.json has rope_parameters and rope_scaling, and they differ; remove one of them"
        )
    rope = found[0]
    if part is not None:
        options = dict(rope.options)
        stated = options.pop("partial_rotary_factor", part)
        if not isinstance(stated, float) or not 0 < stated <= 1:
            raise CheckpointError(f"partial_rotary_factor {stated!r:.40} is not from 0 to 1")
        rope = replace(rope, part=stated, options=tuple(sorted(options.items())))
    return replace(rope, interleaved=interleaved)


def typed_ropes(
    names: tuple[str, ...],
    full: tuple[str, float],
    local: tuple[str, float],
    longest: int,
    *,
    local_scaled: bool = True,
) -> tuple[Joint, Joint]:
    """Positions of the blocks that see all tokens, and of those with a window.

    Args:
        names: All keys that say them.
        full: The key that says the base of the first, and the format's default of it.
        local: The same of the others.
        longest: The format's default of max_position_embeddings.
        local_scaled: Whether rope_scaling is for the others too.
    """

    def reader(kind: str, theta: tuple[str, float], scaling: bool) -> Callable[..., Rope]:
        return lambda config, _: _typed_rope(config, kind, theta, longest, scaling=scaling)

    return (
        Joint(names, "rope", reader(_KINDS[0], full, True)),
        Joint((), "local_rope", reader(_KINDS[1], local, local_scaled)),
    )


def _typed_rope(
    config: Mapping[str, Any],
    kind: str,
    theta: tuple[str, float],
    longest: int,
    *,
    scaling: bool,
) -> Rope:
    """Positions of a kind of blocks: a table for each, or a base for each and one scaling.

    Args:
        config: What was read.
        kind: Of the blocks, a word of layer_types.
        theta: The key that says its base where its table does not, and the format's default.
        longest: The format's default of max_position_embeddings.
        scaling: Whether rope_scaling is for this kind.
    """
    tables, more = config.get("rope_parameters"), config.get("rope_scaling")
    if tables and not (isinstance(tables, dict) and set(tables) <= set(_KINDS)):
        raise CheckpointError(
            f"rope_parameters {tables!r:.60} has no table for each of {' and '.join(_KINDS)}"
        )
    if isinstance(more, dict) and "rope_type" not in more:
        raise CheckpointError("rope_scaling says no rope_type, without which it is not read")
    own = dict((tables or {}).get(kind) or {})
    if scaling and isinstance(more, dict):
        own |= more
    key, default = theta
    own.setdefault("rope_theta", config.get(key) or default)
    stated = {"rope_parameters": own} | {k: config.get(k) for k in (_LONGEST, _PART)}
    return read_rope({k: v for k, v in stated.items() if v is not None}, longest)


def _says_theta(config: Mapping[str, Any]) -> bool:
    tables = (config.get(name) for name in ("rope_scaling", "rope_parameters"))
    return any(isinstance(table, dict) and "rope_theta" in table for table in tables)


def _rope(config: Mapping[str, Any], table: dict[str, Any], longest: int, keep_part: bool) -> Rope:
    stated = {name: value for name, value in table.items() if value is not None}
    kind = stated.pop("type", "default")
    kind = stated.pop("rope_type", kind)
    thetas = [stated.pop("rope_theta", None), config.get("rope_theta")]
    thetas = [theta for theta in thetas if theta is not None]
    if not thetas:
        raise CheckpointError("rope_theta is not known; give config.json or --set rope_theta=…")
    part = stated.pop("partial_rotary_factor", config.get("partial_rotary_factor"))
    options = {**_DEFAULTS.get(kind, {}), **stated} if isinstance(kind, str) else stated
    if part is not None and (keep_part or part != 1):
        options["partial_rotary_factor"] = part
    if kind in _BY_LONGEST + _BY_ORIGINAL:
        longest = setting(config, Key(_LONGEST, "", int, longest))
        before = config.get("original_max_position_embeddings")
        if kind in _BY_LONGEST:
            options[_LONGEST] = longest
        if kind in _BY_ORIGINAL:
            before = options.get("original_max_position_embeddings") if before is None else before
            options["original_max_position_embeddings"] = longest if before is None else before
    flat = [v for value in options.values() for v in (value if type(value) is list else [value])]
    if not isinstance(kind, str) or not all(
        type(number) in (int, float) or (type(number) is bool and "truncate" in options)
        for number in (*flat, *thetas)
    ):
        raise CheckpointError(f"rope_parameters {table!r:.100} are not a type and numbers")
    if thetas[0] != thetas[-1]:
        raise CheckpointError(
            f"config.json says rope_theta twice, {thetas[0]!r:.40} and {thetas[1]!r:.40}; "
            f"remove one of them"
        )
    numbers = tuple(sorted((name, _numbers(value, name)) for name, value in options.items()))
    return Rope(as_float(thetas[0], "rope_theta"), kind, numbers)


def _numbers(value: Any, name: str) -> float | tuple[float, ...]:
    if isinstance(value, list):
        return tuple(as_float(number, f"{name!r:.60}") for number in value)
    return as_float(value, f"{name!r:.60}")


def one_window(default: int | None) -> Callable[[Mapping[str, Any], int], tuple[int | None, ...]]:
    """The same window in each block; the default if nothing is said."""
    return lambda config, blocks: _windows([_window(config, default)] * blocks)


def typed_windows(
    default: int,
    pattern: int,
    key: str | None,
    *,
    both_sides: str | None = None,
    full_first: bool = False,
) -> Callable[[Mapping[str, Any], int], tuple[int | None, ...]]:
    """A window in the blocks that layer_types names, else in all but every so many.

    Args:
        default: The window, if nothing is said.
        pattern: Every how many blocks there is none, if nothing is said.
        key: What says it, if anything does.
        both_sides: What says the tokens before and after one together; else sliding_window is
            read.
        full_first: Whether the first of so many blocks has none, and not the last.
    """

    def windows(config: Mapping[str, Any], blocks: int) -> tuple[int | None, ...]:
        kinds = setting(config, Key("layer_types", "", list, None))
        if kinds is None:
            every = setting(config, Key(key, "", int, pattern)) if key else pattern
            full = 0 if full_first else every - 1
            kinds = [_KINDS[number % every != full] for number in range(blocks)]
        _check_kinds(kinds, blocks)
        if both_sides is None:
            window = _window(config, default)
        else:
            window = setting(config, Key(both_sides, "", int, default, least=2)) // 2
        return _windows([window if kind == _KINDS[1] else None for kind in kinds])

    return windows


def qwen2_windows(config: Mapping[str, Any], blocks: int) -> tuple[int | None, ...]:
    """A window in the blocks that layer_types names, else from max_window_layers on."""
    used = setting(config, Key("use_sliding_window", "", bool, False))
    window = _window(config, 4096) if used else None
    kinds = setting(config, Key("layer_types", "", list, None))
    if kinds is None:
        first = setting(config, Key("max_window_layers", "", int, 28, least=0))
        return _windows([window if number >= first else None for number in range(blocks)])
    _check_kinds(kinds, blocks)
    if window is None and "sliding_attention" in kinds:
        raise CheckpointError(
            "layer_types has sliding_attention, but no window is used; give sliding_window and "
            "use_sliding_window, or full_attention for every block"
        )
    return _windows([window if kind == "sliding_attention" else None for kind in kinds])


def _check_kinds(kinds: Sequence[str], blocks: int) -> None:
    if len(kinds) != blocks or any(kind not in _KINDS for kind in kinds):
        raise CheckpointError(
            f"layer_types should be {blocks} words, one for each block, of {' and '.join(_KINDS)}; "
            f"config.json has {len(kinds)}: {list(kinds)!r:.80}"
        )


def _window(config: Mapping[str, Any], default: int | None) -> int | None:
    """How many tokens a token sees, itself among them; null for all."""
    if config.get("sliding_window", default) is None:
        return None
    window: int | None = setting(config, Key("sliding_window", "", int, default))
    return window


def _windows(each: list[int | None]) -> tuple[int | None, ...]:
    return tuple(each) if any(window is not None for window in each) else ()
