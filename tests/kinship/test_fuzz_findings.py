"""What fuzzing found in fingerprints."""

import json

import pytest

from transformer_nfn.checkpoints import CheckpointError
from transformer_nfn.kinship import Fingerprint

PARTS = {"mlp 0": [0.5] * 16}
SOUND = {"path": "a", "shape": "b", "dtype": "c", "parts": PARTS}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "[]",
        "[" * 5000,
        json.dumps({**SOUND, "parts": 5}),
        json.dumps({**SOUND, "parts": {"a": [1.0] * 15}}),
        json.dumps({**SOUND, "parts": {"a": ["x"] * 16}}),
        json.dumps({**SOUND, "parts": {"a": [10**400] * 16}}),
        json.dumps({**SOUND, "path": None}),
        json.dumps({"path": "a"}),
    ],
)
def test_a_fingerprint_that_is_none(text: str) -> None:
    with pytest.raises(CheckpointError):
        Fingerprint.from_json(text)


def test_a_fingerprint_is_read() -> None:
    assert Fingerprint.from_json(json.dumps(SOUND)).to_json() == SOUND
