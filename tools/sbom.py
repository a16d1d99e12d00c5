"""The bill of materials: everything that is installed, as CycloneDX JSON.

    python tools/sbom.py sbom.json

Written from the metadata of the environment, with the library that pip-audit brings, and read back:
torch, safetensors and pyarrow must be in it with the versions that are imported.
"""

import importlib
import json
import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

CHECKED = ("torch", "safetensors", "pyarrow")
ROOT = "transformer-nfn"


def component(one: Distribution) -> Component:
    """A package by name and version."""
    name = one.metadata["Name"]
    return Component(
        name=name,
        version=one.version,
        type=ComponentType.LIBRARY,
        bom_ref=f"{name}=={one.version}",
        purl=PackageURL("pypi", None, name.lower().replace("_", "-"), one.version),
        description=one.metadata.get("Summary"),
    )


def make() -> str:
    """The bill of this environment."""
    bom = Bom()
    found = {one.metadata["Name"].lower(): one for one in distributions()}
    for name, one in sorted(found.items()):
        if name == ROOT:
            bom.metadata.component = component(one)
        else:
            bom.components.add(component(one))
    if bom.metadata.component:
        bom.register_dependency(bom.metadata.component, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def problems(text: str) -> list[str]:
    """What is wrong with a bill."""
    listed = {one["name"].lower(): one.get("version") for one in json.loads(text)["components"]}
    wrong = []
    for name in CHECKED:
        imported = importlib.import_module(name).__version__
        if listed.get(name) != imported:
            wrong.append(f"{name} is {imported}, the bill says {listed.get(name)}")
    return wrong


def main() -> int:
    """Write it, and read it back."""
    path = Path(sys.argv[1])
    path.write_text(make(), encoding="utf-8")
    text = path.read_text(encoding="utf-8")
    wrong = problems(text)
    print(f"{path.name}: {len(json.loads(text)['components'])} packages", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
