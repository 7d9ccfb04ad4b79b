"""The words of core, a module per word or family of words, and what a container of a third party is written with.

The functions here are public: `run_child`, `select`, `fill_up` and `combine_ranges`. Core's own containers use the
same. A container is a `headrace.Backend` with ``takes``, and perhaps a `Bracket`. A `Place` says where a backend may
stand. What a child needs, and what it may get, is said in `headrace.Backend` and `headrace.InitContext`.

The modules are core's own. The names in ``__all__`` of each are words that may stand in a configuration. ``S = Sequential``
makes an alias. What a word says of itself to the planner and to the builder is in `headrace._plan.word.Word`.
"""

from headrace._build.callees import fill_up, run_child, select
from headrace._contract.groups import Bracket, Place
from headrace._plan.declared import combine_ranges

__all__ = ["Bracket", "Place", "combine_ranges", "fill_up", "run_child", "select"]
