"""The plan of a pipeline: what a configuration asks for, as frozen data. Nothing is built.

`headrace.PipelineConfig.plan` gives it, for a pipeline in service too::

    plan = headrace.PipelineConfig.load("line.toml").plan()
    for name, node in plan.nodes.items():
        print(name, node.instance_num, node.range, [part.name for part in node.tree.walk()])

It is the plan from which the pipeline is built. `Plan.to_dict` gives what `headrace.explain` gives
and ``headrace explain --json`` prints, and `Plan.json_schema` the JSON Schema of that. A key that
has a default is left out where it has it. Keys are only ever added.
"""

from headrace._language.plan.data import Value
from headrace._language.plan.element import Element, Range
from headrace._language.plan.nodes import Asked, NodePlan, Plan, Processes

__all__ = ["Asked", "Element", "NodePlan", "Plan", "Processes", "Range", "Value"]
