"""The adapter between tests and a node: entries, instances, its queue."""

from __future__ import annotations

from headrace._running.batch import repeated as repeated
from headrace._running.entry import DONE as DONE
from headrace._running.entry import QUEUED as QUEUED
from headrace._running.entry import RUNNING as RUNNING
from headrace._running.entry import Entry as Entry
from headrace._running.instance import Instance as Instance
from headrace._running.instance import Limits as Limits
from headrace._running.queue import RequestQueue as RequestQueue
from headrace._running.threads import Signal as Signal
