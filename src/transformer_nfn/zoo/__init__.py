"""Zoos of small trained transformers: recipes, tasks, trainer, build, store.

Reading a zoo is a door of its own, `transformer_nfn.zoo.dataset`. Nothing here imports Ray,
scikit-learn, gensim or matplotlib before it is needed.
"""

from transformer_nfn.zoo.asking import ask
from transformer_nfn.zoo.build import Build
from transformer_nfn.zoo.errors import RecipeError, StoreError
from transformer_nfn.zoo.finished.card import write_card
from transformer_nfn.zoo.finished.exporting import export
from transformer_nfn.zoo.finished.publishing import publish
from transformer_nfn.zoo.finished.summary import summarize
from transformer_nfn.zoo.finished.verification import Checked, verify
from transformer_nfn.zoo.gathered.gathering import Gathered, gather
from transformer_nfn.zoo.nets import NetShape
from transformer_nfn.zoo.planning import Plan, Speed, calibrate, make_plan
from transformer_nfn.zoo.published.importing import PublishedImport
from transformer_nfn.zoo.recipe import RECIPES, Recipe
from transformer_nfn.zoo.runs import Hyperparameters, Run
from transformer_nfn.zoo.tasks import TASKS, DataError, Part, load_task
from transformer_nfn.zoo.training.trainer import GroupTrainer

__all__ = [
    "RECIPES",
    "TASKS",
    "Build",
    "Checked",
    "DataError",
    "Gathered",
    "GroupTrainer",
    "Hyperparameters",
    "NetShape",
    "Part",
    "Plan",
    "PublishedImport",
    "Recipe",
    "RecipeError",
    "Run",
    "Speed",
    "StoreError",
    "ask",
    "calibrate",
    "export",
    "gather",
    "load_task",
    "make_plan",
    "publish",
    "summarize",
    "verify",
    "write_card",
]
