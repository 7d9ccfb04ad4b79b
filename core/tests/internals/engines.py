"""The adapter between tests and how pipelines are built, reloaded and closed."""

from headrace._build.parts import CloseStack as CloseStack
from headrace._build.parts import _Closing
from headrace._engine.engine import Engine as Engine
from headrace._engine.reload import Reloader as Reloader
from headrace._engine.teardown import Retirement as Retirement

Closing = _Closing
