"""Where a big run happens: chunks of items, each written once and for good, in this process or on a Ray cluster."""

from gamlens.engine.jobs import Done, Job, ResultRow, Worker, pieces, run_local
from gamlens.engine.ray import run_ray
from gamlens.engine.run_folder import RunFolder
from gamlens.engine.store import Store

ENGINES = ("local", "ray")
