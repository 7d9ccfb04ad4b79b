"""What a container of a third party is written with.

The functions here are public: `run_child`, `select`, `fill_up` and `combine_ranges`. Core's own
containers use the same. A container is a `headrace.Backend` with ``takes``, and perhaps a
`Bracket`. A `Place` says where a backend may stand. What a child needs, and what it may get, is
said in `headrace.Backend` and `headrace.InitContext`.
"""

from headrace._language.building.children import fill_up, run_child, select
from headrace._language.contract.groups import Bracket, Place
from headrace._language.plan.declared import combine_ranges

__all__ = ["Bracket", "Place", "combine_ranges", "fill_up", "run_child", "select"]
