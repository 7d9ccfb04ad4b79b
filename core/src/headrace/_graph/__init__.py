"""Several nodes as one pipeline: how they are linked, and how a request walks through them."""

from headrace._graph.graph import Graph, Route, Station
from headrace._graph.here import is_cheap, walk_here
from headrace._graph.together import may_wait, walk_together
from headrace._graph.walk import Walk

__all__ = [
    "Graph",
    "Route",
    "Station",
    "Walk",
    "is_cheap",
    "may_wait",
    "walk_here",
    "walk_together",
]
