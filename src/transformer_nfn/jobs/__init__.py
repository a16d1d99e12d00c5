"""Many independent jobs: where they run, and the shards in which they leave their results."""

from transformer_nfn.jobs.csvfiles import check_regular, read_csv
from transformer_nfn.jobs.errors import DamagedError, JobError
from transformer_nfn.jobs.executors import Done, Executor, Failed, InProcess
from transformer_nfn.jobs.folder import ShardFolder
from transformer_nfn.jobs.progress import track
from transformer_nfn.jobs.ray_executor import RayExecutor
from transformer_nfn.jobs.tables import MOST_MORE, MOST_TIMES, read_table, sound
from transformer_nfn.jobs.threads import no_subnormals, one_thread

__all__ = [
    "MOST_MORE",
    "MOST_TIMES",
    "DamagedError",
    "Done",
    "Executor",
    "Failed",
    "InProcess",
    "JobError",
    "RayExecutor",
    "ShardFolder",
    "check_regular",
    "no_subnormals",
    "one_thread",
    "read_csv",
    "read_table",
    "sound",
    "track",
]
