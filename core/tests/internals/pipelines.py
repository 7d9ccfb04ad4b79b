"""The adapter between tests and what is behind a pipeline: its engine and its schedulers."""

from __future__ import annotations

from headrace._scheduling.threads import run_on_helper


def schedulers(pipe):
    """Return the schedulers of a pipeline, in the order of its nodes; a front comes first."""
    return pipe._engine._schedulers


def scheduler_of(pipe, name="main"):
    """Give the scheduler of one node."""
    return pipe._engine._nodes[name].scheduler


def instances_of(pipe, name="main"):
    """Return the instances of a node that are in service."""
    return scheduler_of(pipe, name).instances


def open_entries(pipe):
    """Return the entries that run, wait or are PENDING, each with its scheduler."""

    def look(scheduler):
        node = scheduler.node
        with node.section:
            running = [entry for one in node.every for entry in one.entries or ()]
            return [*running, *node.queue, *node.outside, *node.pending.open]

    return [(entry, one) for one in schedulers(pipe) for entry in run_on_helper(look, one)]


def expire(scheduler, entry):
    """Let the deadline of an entry pass, as the timer does."""
    run_on_helper(scheduler.expire, entry)


def batch_policy_of(pipe, name="main"):
    """Return the batch policy of a node."""
    return scheduler_of(pipe, name).dispatcher.policies[0]


def reporter_of(pipe, name="main"):
    """Return what tells the probes of a node; None where none listens."""
    return scheduler_of(pipe, name).node.reporter
