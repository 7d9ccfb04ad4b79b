"""A pipeline as plain data: what every configuration becomes, and what a program that makes pipelines writes by itself.

A `Blueprint` is all that a `headrace.Pipeline` is built from. `headrace.pipe` makes it of a configuration. By hand it needs
no configuration, no plugin and no options, and nothing of what reads them is imported::

    from headrace import Pipeline
    from headrace.blueprint import blueprint, node

    class Upper:
        def forward(self, batch):
            for request in batch:
                request["result"] = request["data"].upper()

    with Pipeline(blueprint(node("upper", Upper, instance_num=2, max=8))) as pipeline:
        print(pipeline({"data": "a"})["result"])

Requests, errors, batches, closing and ``stats()`` are those of every pipeline.
"""

from headrace._run.blueprint import Blueprint, Limits, Links, NodeBlueprint
from headrace._run.objects import Runs, blueprint, node
from headrace._run.policies import (
    BatchPolicy,
    BestFit,
    Cut,
    DispatchPolicy,
    Greedy,
    InstanceView,
    Queue,
    Waiting,
)

__all__ = [
    "BatchPolicy",
    "BestFit",
    "Blueprint",
    "Cut",
    "DispatchPolicy",
    "Greedy",
    "InstanceView",
    "Limits",
    "Links",
    "NodeBlueprint",
    "Queue",
    "Runs",
    "Waiting",
    "blueprint",
    "node",
]
