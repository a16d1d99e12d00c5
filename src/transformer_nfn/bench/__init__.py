"""Predict a network's accuracy from its weights, and measure how well.

Nothing here imports XGBoost, LightGBM, scikit-learn or matplotlib before it is needed.
"""

from transformer_nfn.bench.errors import BenchError, LeakError
from transformer_nfn.bench.examples import Divided, Examples
from transformer_nfn.bench.kendall import kendall_tau
from transformer_nfn.bench.models.kind import TIERS, Kind
from transformer_nfn.bench.models.neural import Fitting, NeuralPredictor
from transformer_nfn.bench.models.predictor import Predictor, Step
from transformer_nfn.bench.models.registry import (
    MODELS,
    load_installed,
    main_models,
    register_predictor,
)
from transformer_nfn.bench.models.regression.trees import TreePredictor
from transformer_nfn.bench.models.saved import load_predictor, named_folder, saved_names
from transformer_nfn.bench.protocol.cell import Cell
from transformer_nfn.bench.protocol.computing import Finished, finished_cells, fit_and_save
from transformer_nfn.bench.protocol.experiments import experiment_cells
from transformer_nfn.bench.protocol.loading import divide, load_examples
from transformer_nfn.bench.protocol.outside import (
    Predictions,
    keep_outside,
    outside_cell,
    read_predictions,
    sides_table,
)
from transformer_nfn.bench.protocol.planning import estimate_seconds
from transformer_nfn.bench.protocol.runner import Bench
from transformer_nfn.bench.ranking import (
    Net,
    Ranked,
    check_net,
    checkpoint_files,
    rank_files,
    rank_nets,
)
from transformer_nfn.bench.report.outside import Placed, standing
from transformer_nfn.bench.report.scores import Comparison, comparisons
from transformer_nfn.bench.report.writing import write_report

__all__ = [
    "MODELS",
    "TIERS",
    "Bench",
    "BenchError",
    "Cell",
    "Comparison",
    "Divided",
    "Examples",
    "Finished",
    "Fitting",
    "Kind",
    "LeakError",
    "Net",
    "NeuralPredictor",
    "Placed",
    "Predictions",
    "Predictor",
    "Ranked",
    "Step",
    "TreePredictor",
    "check_net",
    "checkpoint_files",
    "comparisons",
    "divide",
    "estimate_seconds",
    "experiment_cells",
    "finished_cells",
    "fit_and_save",
    "keep_outside",
    "kendall_tau",
    "load_examples",
    "load_installed",
    "load_predictor",
    "main_models",
    "named_folder",
    "outside_cell",
    "rank_files",
    "rank_nets",
    "read_predictions",
    "register_predictor",
    "saved_names",
    "sides_table",
    "standing",
    "write_report",
]
