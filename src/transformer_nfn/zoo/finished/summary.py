"""What is in a zoo, in a few figures."""

from typing import Any

import numpy as np
import pyarrow.compute as pc  # type: ignore[import-untyped]

from transformer_nfn.jobs import DamagedError, ShardFolder
from transformer_nfn.zoo.dataset import Zoo, ok
from transformer_nfn.zoo.errors import StoreError
from transformer_nfn.zoo.format.ownership import logs_url

QUANTILES = (0.0, 0.25, 0.5, 0.75, 1.0)


def summarize(zoo: Zoo) -> dict[str, Any]:
    """Counts, accuracies and cost, as plain values."""
    names = zoo.names()
    table = zoo.table()
    good = table.filter(ok)
    accuracy = good.column("test_accuracy").drop_null().to_numpy()
    metadata = [zoo.shards.metadata(name) for name in names]
    by_status = table.group_by("status").aggregate([("run", "count")]).to_pylist()
    by_checkpoint = good.group_by("checkpoint").aggregate([("test_accuracy", "mean")]).to_pylist()
    return {
        "zoo": zoo.url,
        "recipe": zoo.name,
        "runs": pc.count_distinct(table.column("run")).as_py(),
        "rows": len(table),
        "shards": len(names),
        "weights_a_net": zoo.shape.size,
        "bytes": sum(
            one.row_group(group).total_byte_size
            for one in metadata
            for group in range(one.num_row_groups)
        ),
        "status": {row["status"]: row["run_count"] for row in by_status},
        "test_accuracy_quantiles": (
            [round(float(q), 4) for q in np.quantile(accuracy, QUANTILES)] if len(accuracy) else []
        ),
        "mean_test_accuracy_by_checkpoint": {
            row["checkpoint"]: round(row["test_accuracy_mean"], 4)
            for row in sorted(by_checkpoint, key=lambda row: row["checkpoint"].zfill(6))
            if row["test_accuracy_mean"] is not None
        },
        "builds": build_logs(zoo),
    }


def build_logs(zoo: Zoo) -> list[dict[str, Any]]:
    """How long each session of the build took, the oldest first."""
    folder = ShardFolder(logs_url(zoo.url))
    try:
        logs = [folder.read_json(name) for name in sorted(folder.sidecars())]
    except DamagedError as error:
        raise StoreError(f"{error}: delete this log, nothing depends on it") from None
    return sorted(logs, key=lambda log: str(log.get("started", "")))
