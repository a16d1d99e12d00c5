"""Who comes from whom: kin with a p-value, fingerprints, copies in disguise, series of steps."""

from transformer_nfn.kinship.descent.answer import Kin, Relation, kin, kin_by_rows, kin_by_table
from transformer_nfn.kinship.descent.closeness import Closeness
from transformer_nfn.kinship.descent.comparing import LEVEL, BlockKin, NetKin, Stream
from transformer_nfn.kinship.descent.counting import Count
from transformer_nfn.kinship.descent.picture import plot_blocks
from transformer_nfn.kinship.digests import copies_by_digest, tensor_digest
from transformer_nfn.kinship.disguise.score import Disguise, in_disguise
from transformer_nfn.kinship.distances import (
    COPY,
    NEAR,
    Distance,
    Kinship,
    Stack,
    copy_limit,
    distance,
)
from transformer_nfn.kinship.duplicates import Duplicates, Row, dedup, group_copies
from transformer_nfn.kinship.fingerprinting import WIDTH, Fingerprint, check_choice, fingerprint
from transformer_nfn.kinship.folders import Prints, find_checkpoints, fingerprints, natural
from transformer_nfn.kinship.forest import Edge, Forest
from transformer_nfn.kinship.index import Index, Neighbour, Shelf, shelve_sketches
from transformer_nfn.kinship.parents.explaining import Explained, Explanation, Origin, explain
from transformer_nfn.kinship.picture import plot_kin
from transformer_nfn.kinship.probes import SEED
from transformer_nfn.kinship.series import Audit, audit_series
from transformer_nfn.kinship.sketch.finding import SketchStack, are_kin
from transformer_nfn.kinship.sketch.making import Sketch, sketch
from transformer_nfn.kinship.tree import SUFFIXES as TREES
from transformer_nfn.kinship.tree import Branch, branches, write_tree

__all__ = [
    "COPY",
    "LEVEL",
    "NEAR",
    "SEED",
    "TREES",
    "WIDTH",
    "Audit",
    "BlockKin",
    "Branch",
    "Closeness",
    "Count",
    "Disguise",
    "Distance",
    "Duplicates",
    "Edge",
    "Explained",
    "Explanation",
    "Fingerprint",
    "Forest",
    "Index",
    "Kin",
    "Kinship",
    "Neighbour",
    "NetKin",
    "Origin",
    "Prints",
    "Relation",
    "Row",
    "Shelf",
    "Sketch",
    "SketchStack",
    "Stack",
    "Stream",
    "are_kin",
    "audit_series",
    "branches",
    "check_choice",
    "copies_by_digest",
    "copy_limit",
    "dedup",
    "distance",
    "explain",
    "find_checkpoints",
    "fingerprint",
    "fingerprints",
    "group_copies",
    "in_disguise",
    "kin",
    "kin_by_rows",
    "kin_by_table",
    "natural",
    "plot_blocks",
    "plot_kin",
    "shelve_sketches",
    "sketch",
    "tensor_digest",
    "write_tree",
]
