"""Policies decide when a batch is formed and which instance takes it, without thread or clock.

A policy is made once per node. On every arrival, release and ``wake_at`` the scheduler asks
``choose(total waiting weight, free)`` for an instance, then ``cut(queue, chosen, now)`` for a
batch. After ``take = 0`` it offers the next free instance. All that a policy knows comes through
its arguments, so that a test or a simulator can drive it with a clock of its own.

A class may be both a `BatchPolicy` and a `DispatchPolicy`: when it is named for both keys, one
object is made, which shares its state between the two.

headrace-flow has conditions, of which a batch policy is often made, and policies that pick which
requests share a batch.

A name comes from `headrace.register`, or from a plugin's hook (see `headrace.hookspecs`). Args and
keys of the node become its options, ``batch_policy = "Patient(wait_ms=5)"``.
"""

from headrace._language.contract.policy_options import (
    BatchPolicy,
    BestFit,
    DispatchPolicy,
    Greedy,
    Sized,
)
from headrace._run.contract.policies import Cut, InstanceView, Queue, Waiting

__all__ = [
    "BatchPolicy",
    "BestFit",
    "Cut",
    "DispatchPolicy",
    "Greedy",
    "InstanceView",
    "Queue",
    "Sized",
    "Waiting",
]
