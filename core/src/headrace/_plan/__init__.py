"""From a configuration to a checked plan: what every name means, with its options and range."""

from headrace._plan.element import Element, Named, NodePlan, PipelinePlan, PolicyPlan
from headrace._plan.planner import plan_expression, plan_pipeline

__all__ = [
    "Element",
    "Named",
    "NodePlan",
    "PipelinePlan",
    "PolicyPlan",
    "plan_expression",
    "plan_pipeline",
]
