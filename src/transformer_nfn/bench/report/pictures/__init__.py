"""Pictures of comparisons, as PNG: each function takes comparisons and returns a file's bytes.

Colours mean the same in all of them: the paper's model, its baselines, controls, variants.
"""

from transformer_nfn.bench.report.pictures.dots import robustness, tracks
from transformer_nfn.bench.report.pictures.lines import augmentation, by_threshold
from transformer_nfn.bench.report.pictures.points import scatter
from transformer_nfn.bench.report.pictures.sizes import by_size

__all__ = ["augmentation", "by_size", "by_threshold", "robustness", "scatter", "tracks"]
