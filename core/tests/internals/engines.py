"""The adapter between tests and how pipelines are built, reloaded and closed."""

from headrace._build.parts import CloseStack as CloseStack
from headrace._build.parts import _Closing
from headrace._running.engine import Engine as Engine
from headrace._running.reload import Reloader as Reloader
from headrace._running.teardown import Retirement as Retirement

Closing = _Closing
