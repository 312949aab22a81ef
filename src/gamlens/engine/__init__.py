"""Runs work on many items, in this process or on a Ray cluster.

Items are divided into chunks. The results of each chunk are written as one file, so that a stopped run can continue.
"""

from gamlens.engine.jobs import Done, Job, ResultRow, Worker, pieces, run_local
from gamlens.engine.ray import run_ray
from gamlens.engine.run_folder import RunFolder
from gamlens.engine.store import Store

ENGINES = ("local", "ray")
