"""The cluster: how a program is connected to it, and resources that are reserved there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import ray
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from headrace.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ray.util.placement_group import PlacementGroup

__all__ = ["Reservation", "connect", "reserve", "room"]

_REACHED_S = 10.0
_LOOK_S = 0.1
"""How often a wait looks whether it was given up."""

_connecting = threading.Lock()


# Connecting.


def connect(address: str | None) -> None:
    """Connect this program to a cluster, unless it is connected.

    Args:
        address: ``HOST:PORT`` of the head, ``auto``, or ``ray://HOST:PORT``. None: that of ``RAY_ADDRESS``.

    Raises:
        SetupError: There is no address, no cluster answers there, it refuses, or the program is connected to
            another one.
    """
    with _connecting:
        if ray.is_initialized():
            _check_same(address)
            return
        address = address or os.environ.get("RAY_ADDRESS")
        if not address:
            problem = "this program is not connected to Ray, and no cluster is started for it"
            hint = (
                "Name a cluster: the option address, or RAY_ADDRESS, as HOST:6379; or call ray.init() before. "
                "`ray start --head` starts one on this machine."
            )
            raise SetupError(problem, hint=hint)
        _check_reached(address)
        before = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address=address, configure_logging=False)
        except Exception as error:
            with contextlib.suppress(Exception):
                ray.shutdown()
            raise _refused(address, error) from error
        finally:
            # Ray takes SIGTERM for itself, which a server needs to end in order.
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, before)


def _check_same(address: str | None) -> None:
    """Refuse an address of another cluster than the one to which the program is connected."""
    if address is None or address == "auto" or "://" in address:
        return
    here: str = ray.get_runtime_context().gcs_address
    if _resolved(address) != _resolved(here):
        problem = f"address is {address}, and this program is connected to the cluster at {here}"
        hint = "A program can use one cluster: leave the option out, or connect to that address."
        raise SetupError(problem, hint=hint)


def _resolved(address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError):
        host = str(socket.getaddrinfo(host.strip("[]"), None)[0][4][0])
    return host, port


def _check_reached(address: str) -> None:
    """Refuse an address at which nothing listens: Ray itself would try for a minute."""
    host, _, port = address.rpartition("://")[2].partition("/")[0].rpartition(":")
    if host and port.isdecimal():
        try:
            socket.create_connection((host.strip("[]"), int(port)), _REACHED_S).close()
        except OSError as error:
            raise _refused(address, error) from error


def _refused(address: str, error: Exception) -> SetupError:
    text = " ".join(str(error).split())
    python = "{}.{}.{}".format(*sys.version_info)
    hint = (
        "Three things can be wrong. The token: you need that of the cluster (RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, "
        f"or ~/.ray/auth_token). The version: here is Ray {ray.__version__} with Python {python}, and the cluster "
        f"must have the same. The network: {address} must be reached from here, and a Ray node must run on this "
        "machine unless the address begins with ray://."
    )
    return SetupError(f"Ray refuses the connection to {address}: {text}", hint=hint)


# Resources.


class Reservation:
    """Resources of several actors, reserved together. They are given back with the last of them.

    Args:
        group: The placement group.
        count: Of how many actors.
    """

    def __init__(self, group: PlacementGroup, count: int) -> None:
        self._group, self._left = group, count
        self._changed = threading.Lock()

    def strategy(self, index: int) -> PlacementGroupSchedulingStrategy:
        """Return what lets actor ``index`` be started with its resources."""
        return PlacementGroupSchedulingStrategy(self._group, index)

    def exists(self) -> bool:
        """Tell whether the resources are there: after the end of a node Ray looks for others."""
        try:
            return bool(placement_group_table(self._group)["state"] == "CREATED")
        except Exception:  # noqa: BLE001 - the head may be away
            return False

    def nodes(self) -> set[str]:
        """Return the identifiers of the nodes on which the resources are."""
        nodes: Mapping[Any, str] = placement_group_table(self._group)["bundles_to_node_id"]
        return {node for node in nodes.values() if node}

    def give_back(self) -> None:
        """Note that one of the actors needs its resources no more."""
        with self._changed:
            self._left -= 1
            over = self._left == 0
        if over:
            self.remove()

    def remove(self) -> None:
        """Give all resources back."""
        with contextlib.suppress(Exception):  # with the connection they have gone anyway
            if ray.is_initialized():
                remove_placement_group(self._group)


def reserve(
    each: Mapping[str, float],
    count: int,
    placement: str,
    timeout_s: float,
    cancelled: Callable[[], bool],
    apart_from: Iterable[str] = (),
) -> Reservation:
    """Reserve the resources of all actors of a node of the pipeline, or none.

    Args:
        each: The resources of one actor.
        count: How many actors.
        placement: ``pack``, ``spread`` or ``strict_spread``.
        timeout_s: How long to wait for them (seconds).
        cancelled: Tells whether the build was given up.
        apart_from: Identifiers of nodes on which the actors may not be.

    Raises:
        SetupError: They are not there in time, or the build was given up.
    """
    where: dict[str, Any] = {}
    if apart_from:
        away = ",".join(sorted(apart_from))
        where = {"bundle_label_selector": [{"ray.io/node-id": f"!in({away})"}] * count}
    group = placement_group([dict(each)] * count, strategy=placement.upper(), **where)
    reservation = Reservation(group, count)
    try:
        until = time.monotonic() + timeout_s
        while not (reservation.exists() or cancelled()) and time.monotonic() < until:
            group.wait(_LOOK_S)
        if reservation.exists():
            return reservation
        why = "the build was given up" if cancelled() else None
        no_room = _no_room(each, count, placement, timeout_s)
    except BaseException:
        reservation.remove()
        raise
    reservation.remove()
    raise SetupError(why) if why else no_room


def _no_room(each: Mapping[str, float], count: int, placement: str, timeout_s: float) -> SetupError:
    problem = f"Ray has no room within {timeout_s:g} s. Asked: {count} x ({_written(each)}), {placement}. {room(each)}"
    hint = (
        "Ask for less, end what uses it, or add nodes. placement_timeout_s says how long to wait."
    )
    if placement == "strict_spread":
        hint += " strict_spread needs a node for each instance."
    return SetupError(problem, hint=hint)


def room(names: Iterable[str]) -> str:
    """Say how much of some resources is there, and how much of it is free."""
    names = [*names]
    free: Mapping[str, float] = ray.available_resources()
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    total: Counter[str] = Counter()
    for node in nodes:
        total.update({name: node.get(name, 0) for name in names})
    there = {name: total[name] for name in names}
    parts = [" + ".join(f"{own.get(name, 0):g}" for own in nodes) + f" {name}" for name in names]
    return (
        f"There: {_written(there)} (by node: {'; '.join(parts)}). "
        f"Free: {_written({name: free.get(name, 0) for name in names})}."
    )


def _written(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in resources.items())
