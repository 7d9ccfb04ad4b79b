"""Questions of a backend in a process to the process that started it."""

from __future__ import annotations

import os
import time

import pytest

import headrace
from headrace.errors import BackendError

ASKS = """
import os, threading
import headrace
from headrace_process.asking import ask, is_elsewhere, limits_of

class Asks(headrace.Backend):
    max = 4

    @classmethod
    def answerer(cls, options, context):
        def answer(question):
            kind, value = question.content
            if kind == "raise":
                raise ValueError(value)
            if kind == "many":
                for one in range(value):
                    question.send(one, False, None)
                question.send(None, True, None)
            elif kind == "lambda":
                question.send(lambda: 0, True, None)
            elif kind == "about":
                question.send((os.getpid(), question.thread != 0, question.unwanted), True, None)
        return answer

    def wait(self, content, request):
        values, over, errors = [], threading.Event(), []
        def take(value, is_last, error):
            values.append(value)
            errors.append(error)
            if is_last:
                over.set()
        ask("Asks", content, request, take)
        over.wait(60)
        if errors[-1] is not None:
            raise errors[-1]
        return values

    def forward(self, batch):
        for request in batch:
            if request["data"][0] == "from a thread":
                answers = []
                threads = [
                    threading.Thread(target=lambda: answers.append(self.wait(("about", 0), None)))
                    for _ in range(request["data"][1])
                ]
                for one in threads:
                    one.start()
                for one in threads:
                    one.join()
                request["result"] = answers
                continue
            found = self.wait(request["data"], request)
            request["result"] = (os.getpid(), limits_of(request), is_elsewhere(), found)
"""


@pytest.fixture
def pipe(tmp_path):
    file = tmp_path / "asking_here.py"
    file.write_text(ASKS + '\nheadrace.register("Asks", Asks)\n')
    with headrace.pipe({"import": [str(file)], "backend": "Process[Asks]", "max": 4}) as made:
        yield made


def test_the_process_that_started_it_answers(pipe):
    until = time.monotonic() + 60
    future = pipe.submit({"data": ("about", 0)}, timeout=60, priority=3)
    there, limits, elsewhere, [(here, waited, unwanted)] = future.result()["result"]
    assert (here, elsewhere, waited, unwanted) == (os.getpid(), True, True, False)
    assert there != here
    assert limits[1] == 3
    assert until <= limits[0] <= time.monotonic() + 60


def test_without_a_deadline_none_is_told(pipe):
    future = pipe.submit({"data": ("about", 0)})
    assert future.result()["result"][1] == (None, 0)


def test_an_answer_has_many_values(pipe):
    assert pipe({"data": ("many", 5)})["result"][3] == [0, 1, 2, 3, 4, None]


@pytest.mark.parametrize("kind", ["raise", "lambda"])
def test_an_error_is_the_answer(pipe, kind):
    with pytest.raises(BackendError) as caught:
        pipe({"data": (kind, "no such thing")})
    text = str(caught.value.__cause__ or caught.value)
    assert ("no such thing" if kind == "raise" else "cannot be sent") in text


def test_any_thread_asks(pipe):
    answers = pipe({"data": ("from a thread", 8)})["result"]
    assert answers == [[(os.getpid(), False, False)]] * 8
