import json
from pathlib import Path

import pytest

from tests.bench.small import small_examples
from tests.bench.test_ranking import export
from tests.cli.test_zoo import tnfn
from tests.hub.nets import upload
from transformer_nfn.bench import Cell, fit_and_save, load_predictor, rank_files


@pytest.fixture(scope="module")
def model(zoo_folder: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("saved") / "invariants"
    fit_and_save(Cell(zoo=zoo_folder, model="invariants", split=2), folder)
    return folder


def test_many_files_are_ranked_as_few_are(model: Path, tmp_path: Path, memory: str) -> None:
    files = export(small_examples(12, seed=99), tmp_path / "nets")
    (tmp_path / "nets" / "broken.safetensors").write_bytes(b"no")
    expected = rank_files(load_predictor(model), files)
    for source in (str(tmp_path / "nets"), upload(tmp_path / "nets", f"{memory}/nets")):
        out = f"{tmp_path}/out-{source.partition(':')[0].strip('/').replace('/', '-')}"
        for done in (len(files) + 1, 0):
            result = tnfn("rank", source, "--model", model, "--out", out, "--top", 5, "--json")
            assert result.exit_code == 0, result.output
            found = json.loads(result.stdout)
            assert found["status"] == {"ok": len(files), "broken": 1}
            assert found["done"] == done
            best = [(Path(one["path"]).name, one["predicted"]) for one in found["ranked"]]
            assert [name for name, _ in best] == [Path(one.path).name for one in expected[:5]]
            assert [value for _, value in best] == pytest.approx(
                [one.predicted for one in expected[:5]]
            )


def test_ray_needs_a_folder(model: Path, tmp_path: Path) -> None:
    assert tnfn("rank", tmp_path, "--model", model, "--ray", "local").exit_code == 2
