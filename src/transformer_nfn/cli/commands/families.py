"""`tnfn families`: the architectures that are read."""

from typing import Annotated, Any

import typer

from transformer_nfn.cli.common import Json
from transformer_nfn.cli.tables import print_table
from transformer_nfn.cli.terminal import say, say_json
from transformer_nfn.cli.wording import counted


def families(
    model_type: Annotated[
        str | None, typer.Argument(help="Only this one, with all settings that it reads.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the architectures that are read.

    By the model_type of their config.json.

    Example: tnfn families gemma3_text
    """
    from transformer_nfn.checkpoints import FAMILIES, CheckpointError

    tables = {
        kind: _table(family, kind) for family in FAMILIES.values() for kind in sorted(family.keys)
    }
    if model_type is not None and model_type not in tables:
        raise CheckpointError(
            f"{model_type!r:.60} is none of {', '.join(sorted(tables))}; a table of your own can "
            f"be given with --family, see docs/understand/networks.md"
        )
    chosen = {kind: tables[kind] for kind in ([model_type] if model_type else sorted(tables))}
    if as_json:
        say_json(chosen)
    elif model_type is None:
        rows = ((kind, table["family"][0], table["told_by"][-1]) for kind, table in chosen.items())
        print_table(("model_type", "family", "told by the tensor"), rows)
        say(f"{counted(len(chosen), 'model_type')}, in {_families(chosen)}")
        say("tnfn families MODEL_TYPE shows the settings that one of them reads")
    else:
        for what, value in chosen[model_type].items():
            words = [f"{n}={v!r}" for n, v in value.items()] if isinstance(value, dict) else value
            say(f"{what.replace('_', ' '):<12}{', '.join(words)}")


def _families(chosen: dict[str, dict[str, Any]]) -> str:
    return counted(len({table["family"][0] for table in chosen.values()}), "family", "families")


def _table(family: Any, kind: str) -> dict[str, Any]:
    tables = [each.keys[kind] for each in (family, family.encoder) if each is not None]
    matter = {n for keys in tables for key in keys.matter for n in (key.name, *key.also)}
    matter |= {name for keys in tables for joint in keys.joint for name in joint.names}
    matter |= {bias.key for keys in tables for bias in keys.biases if bias.key}
    return {
        "family": [family.name],
        "told_by": list(family.probes),
        "prefixes": [prefix or "none" for prefix in family.prefixes],
        "block": [family.block],
        "tensors": [f"{m.weight} ({' '.join(m.tensors)}: {m.axes})" for m in family.matrices],
        "settings": sorted(matter),
        "sizes": sorted({name for keys in tables for name in keys.sizes}),
        "only": dict(sorted(tables[0].supported.items())),
    }
