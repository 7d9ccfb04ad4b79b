"""A plugin of pytest with which a process imports only those files of tests that it runs itself.

Processes of pytest-xdist collect all tests, each of them: of ten thousand this takes longer than to run most.
Here they collect files, and the tests of a file once it is that file's turn. The tests, what they show and
what is reported of them are the same; those of one file run in one process.

It sends less, too: of what has passed, neither the beginning nor the end of a test, nor a short setup or teardown.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from collections.abc import Generator

LONG_S = 0.1
"""A setup or teardown that takes as long is reported, for ``--durations``."""


class WholeFile(pytest.Item):
    """A file of tests, which a process gets from the one that distributes them."""

    def runtest(self) -> None:
        """Run nothing: the tests of the file are run instead, see `_Collecting.pytest_runtest_protocol`."""

    def reportinfo(self) -> tuple[Path, None, str]:
        """Give what is said when a process dies in the middle of a file."""
        return self.path, None, self.nodeid


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let who starts the tests ask for it."""
    parser.addoption(
        "--whole-files", action="store_true", help="processes import only the files that they run"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Do so in the processes that run tests, unless some are named, which only who collects them can find."""
    named = any("::" in one for one in config.args)
    if config.getoption("--whole-files") and "PYTEST_XDIST_WORKER" in os.environ and not named:
        config.pluginmanager.register(_Collecting())


class _Collecting:
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collect_file(
        self, file_path: Path, parent: pytest.Collector
    ) -> Generator[None, list[pytest.Collector], list[pytest.Collector | WholeFile]]:
        found = yield
        return [self._whole(one) if type(one) is pytest.Module else one for one in found]

    @staticmethod
    def _whole(module: pytest.Module) -> WholeFile:
        whole = WholeFile.from_parent(module.parent, name=module.path.name, nodeid=module.nodeid)
        whole.path = module.path
        return whole

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(
        self, items: list[pytest.Item]
    ) -> Generator[None, None, None]:
        """Choose by ``-m`` and ``-k`` among tests only."""
        files = [one for one in items if isinstance(one, WholeFile)]
        items[:] = [one for one in items if not isinstance(one, WholeFile)]
        yield
        items[:0] = files

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        if not isinstance(item, WholeFile):
            for report in runtestprotocol(item, log=False, nextitem=nextitem):
                if not report.passed or report.when == "call" or report.duration >= LONG_S:
                    item.ihook.pytest_runtest_logreport(report=report)
            return True
        session = item.session
        tests = list(session.genitems(pytest.Module.from_parent(item.parent, path=item.path)))
        item.config.hook.pytest_collection_modifyitems(
            session=session, config=item.config, items=tests
        )
        if not tests:  # else the last of them would leave what the next file does not share
            session._setupstate.teardown_exact(nextitem)
        place = session.items.index(item)
        for test, following in zip(tests, [*tests, nextitem][1:], strict=True):
            session.items[place] = test  # which is the one that reports are about
            test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session.items[place] = item
        return True
