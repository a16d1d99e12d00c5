"""Many independent jobs: where they run, and the shards in which they leave their results."""

from transformer_nfn.jobs.errors import JobError
from transformer_nfn.jobs.executors import Done, Executor, Failed, InProcess
from transformer_nfn.jobs.folder import ShardFolder
from transformer_nfn.jobs.progress import track
from transformer_nfn.jobs.ray_executor import RayExecutor
from transformer_nfn.jobs.threads import one_thread

__all__ = [
    "Done",
    "Executor",
    "Failed",
    "InProcess",
    "JobError",
    "RayExecutor",
    "ShardFolder",
    "one_thread",
    "track",
]
