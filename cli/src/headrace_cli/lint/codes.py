"""The codes of the warnings of ``check`` and ``explain``, which the key ``allow`` of a node silences."""

from __future__ import annotations

CODES = {
    "backend_warning": "A backend, or a model file that it names, says this of itself.",
    "batching_timeout_unit": "`batching_timeout` is in milliseconds, and this value is one of seconds or microseconds. Write 5 for 5 ms.",
    "device_unused": "Nothing runs on the device, or on one of the list. Remove it, or set `instance_num` to their number.",
    "idle_cores": "One instance runs one batch at a time. Set `instance_num`, if requests come from several threads.",
    "map_source": "A `map` takes a key that no backend before it writes. The hint lists those that are there.",
    "max_cut": "`max` is above what a backend takes. Set it to that.",
    "min_without_wait": "Nothing waits for `min` requests. Set `batching_timeout`, or `pad = true`.",
    "normalization": "`scale`, `mean` and `std` are for different ranges of values: 0 to 255, or 0 to 1. `scale = 0.00392157` goes with those of ImageNet.",
    "queue_size_unused": "`queue_size` bounds the node where requests enter, and these come from another node. Set it there.",
    "timeout_unit": "`timeout_ms` is in milliseconds, and this is more than ten minutes. Write 500 for half a second.",
    "types": "A backend writes a result that the next one, by their documentation, does not read. Change their order, or put a converting one between.",
    "unused_allow": "`allow` names a code that there is not. Remove or correct it.",
    "unused_option": "Another value for the same option is nearer. Remove this one.",
    "work_before_own_thread": "Work waits for the thread of the next backend. Put it into a node of its own.",
}
"""Why each warning is given, and what to do, by its code."""
