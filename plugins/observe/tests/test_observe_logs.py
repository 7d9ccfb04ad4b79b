"""What `setup_logging` changes, and what it leaves."""

from __future__ import annotations

import io
import json
import logging

import pytest

import headrace_observe


@pytest.fixture(autouse=True)
def as_before():
    logger = logging.getLogger("headrace")
    handlers, level = [*logger.handlers], logger.level
    yield
    logger.handlers[:], logger.level = handlers, level
    logger.manager._clear_cache()


def test_lines_of_json_and_only_below_headrace():
    root_before = [*logging.getLogger().handlers]
    own = logging.NullHandler()
    logging.getLogger("headrace").addHandler(own)
    stream = io.StringIO()
    headrace_observe.setup_logging("info", json=True, stream=stream)
    logging.getLogger("headrace.build").info("built %d", 2)
    logging.getLogger("headrace.build").debug("unseen")
    logging.getLogger("somebody.else").warning("unseen")
    try:
        raise KeyError("k")
    except KeyError:
        logging.getLogger("headrace.probes").exception("failed")
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert (first["level"], first["logger"], first["message"]) == (
        "info",
        "headrace.build",
        "built 2",
    )
    assert first["time"].endswith("+00:00")
    assert "KeyError: 'k'" in second["error"]
    assert logging.getLogger().handlers == root_before
    assert own in logging.getLogger("headrace").handlers


def test_a_second_call_takes_the_place_of_the_first():
    first, second = io.StringIO(), io.StringIO()
    headrace_observe.setup_logging(logging.INFO, stream=first)
    headrace_observe.setup_logging("WARNING", stream=second)
    logging.getLogger("headrace.x").info("quiet")
    logging.getLogger("headrace.x").warning("loud")
    assert first.getvalue() == ""
    assert second.getvalue().count("loud") == 1
    assert "WARNING headrace.x" in second.getvalue()


def test_an_unknown_level_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="no level 'chatty'; known are DEBUG"):
        headrace_observe.setup_logging("chatty")
    with pytest.raises(TypeError, match="a name or a number, got True"):
        headrace_observe.setup_logging(True)
