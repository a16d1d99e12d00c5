import json

import torch

from tools import sbom


def test_the_bill_lists_what_is_installed() -> None:
    text = sbom.make()
    listed = json.loads(text)
    assert listed["bomFormat"] == "CycloneDX"
    versions = {one["name"]: one["version"] for one in listed["components"]}
    assert versions["torch"] == torch.__version__
    assert not sbom.problems(text)


def test_another_version_is_noticed() -> None:
    text = sbom.make().replace(f'"version": "{torch.__version__}"', '"version": "0"')
    assert sbom.problems(text) == [f"torch is {torch.__version__}, the bill says 0"]
