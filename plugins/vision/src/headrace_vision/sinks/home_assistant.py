"""What Home Assistant is told of a source: a device, with what is counted at its lines and zones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import headrace_vision
from headrace_vision.sinks.names import mark_of

__all__ = ["device_of"]

_EVENT = "{{ value_json.events | default([]) | last | default({}) | tojson }}"


def device_of(
    device: str, source: str, topic: str, counts: Mapping[str, Iterable[str]], status_topic: str
) -> dict[str, Any]:
    """Return the payload of the discovery of a device.

    Args:
        device: Its name for machines: letters, digits, ``_`` and ``-``.
        source: Its name for people.
        topic: Where its events are. Below it, in ``counts``, are the counts.
        counts: What is counted, as CountLine and CountZone write it.
        status_topic: Says whether the program is there. ``TOPIC/status`` says whether the source is.

    Source:
        The documentation of Home Assistant's MQTT integration: device discovery, and its platforms sensor and binary_sensor.
    """
    last = {
        "platform": "sensor",
        "name": "last event",
        "device_class": "timestamp",
        "state_topic": topic,
        "value_template": "{{ value_json.time | as_datetime }}",
        "json_attributes_topic": topic,
        "json_attributes_template": _EVENT,
    }
    parts: dict[str, dict[str, Any]] = {"last_event": last}
    for name, kinds in counts.items():
        for kind in kinds:
            value = f"value_json[{_literal(name)}][{_literal(kind)}]"
            parts[_id_of(f"{name}_{kind}")] = {
                "platform": "sensor",
                "name": f"{name} {kind}",
                "state_class": "measurement" if kind == "inside" else "total_increasing",
                "value_template": f"{{{{ {value} }}}}",
            }
            if kind == "inside":
                parts[_id_of(f"{name}_occupied")] = {
                    "platform": "binary_sensor",
                    "name": f"{name} occupied",
                    "device_class": "occupancy",
                    "value_template": f"{{{{ 'ON' if {value} else 'OFF' }}}}",
                }
    return {
        "device": {"identifiers": [device], "name": source},
        "origin": {"name": "Headrace", "sw_version": headrace_vision.__version__},
        "availability": [{"topic": status_topic}, {"topic": f"{topic}/status"}],
        "availability_mode": "all",
        "state_topic": f"{topic}/counts",
        "qos": 1,
        "components": {k: {**part, "unique_id": f"{device}_{k}"} for k, part in parts.items()},
    }


def _id_of(text: str) -> str:
    """Return a text of letters, digits and ``_``, no two the same."""
    safe = re.sub(r"\W", "_", text, flags=re.ASCII)
    return safe if safe == text else f"{safe}_{mark_of(text)}"


def _literal(text: str) -> str:
    """Return a text as templates of Jinja write it."""
    return json.dumps(text, ensure_ascii=False)
