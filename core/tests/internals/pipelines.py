"""The adapter between tests and what is behind a pipeline: its engine and its nodes."""

from __future__ import annotations

from headrace._running.box import ask
from headrace._running.threads import run_in_pool


def schedulers(pipe):
    """Return the nodes of a pipeline that have a queue; a front comes last."""
    return pipe._engine.nodes


def scheduler_of(pipe, name="main"):
    """Give the queue and the instances of one node."""
    return pipe._engine.built[name].scheduler


def instances_of(pipe, name="main"):
    """Return the instances of a node that are in service."""
    return scheduler_of(pipe, name).instances


def open_entries(pipe):
    """Return the entries that run, wait or are PENDING, each with its node."""

    def look(node):
        running = [entry for one in node.every for entry in one.entries or ()]
        return [*running, *node.queue, *node.outside, *node.pending.open]

    def all_open():
        return [(entry, one) for one in schedulers(pipe) for entry in look(one)]

    return run_in_pool(ask, pipe._engine.box, all_open)


def expire(node, entry):
    """Let the deadline of an entry pass, as the timer does."""
    run_in_pool(ask, node.box, node.expire, entry)


def batch_policy_of(pipe, name="main"):
    """Return the batch policy of a node."""
    return scheduler_of(pipe, name).decision.policy


def reporter_of(pipe, name="main"):
    """Return what tells the probes of a node; None where none listens."""
    return scheduler_of(pipe, name).reporter
