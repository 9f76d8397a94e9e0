"""The process that Spark forks Python workers from, with the kernels loaded before the first fork.

Idea: a worker that is forked from here shares compiled kernels, pyarrow and numpy with all others
instead of loading them again. Set through `spark.python.daemon.module`.
"""

from __future__ import annotations

import gc

from pyspark.daemon import manager

from icestream.runtime import warm_up

if __name__ == "__main__":
    warm_up.kernels()
    # a worker collects garbage after every task: what is loaded here is never garbage
    gc.collect()
    gc.freeze()
    manager()
