"""The programs find faults that are planted into a copy of core: one of each kind that core once had."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from interleavings_of_core import FOLDER, lines_near

import headrace
from headrace_testing.interleavings import InterleavingError, explore, unsupported

pytestmark = pytest.mark.skipif(bool(unsupported()), reason=unsupported())

MOST_SCHEDULES = 2000
FIRST_SEEDS = {
    "an instance is given back twice after Ctrl-C": 1500,
    "a coroutine was told that nothing runs, and its dict is answered": 1000,
    "who detaches a probe takes the answers that it was to hear of": 8000,
    "what lies there is forgotten where a caller was quicker": 3000,
}
"""Where the search begins for faults that few schedules show: near one that does."""

LATE_ERROR = """        entry.state = DONE
        import threading

        threading.Thread(target=setattr, args=(entry, "error", error), daemon=True).start()
"""
LOCKED_CANCEL = """with self._condition:
            told = ask(entry_box(self._entry), self._entry.node.cancel, self._entry)
        if told is True:"""

FAULTS = {
    "who frees an instance calls nobody in": (
        "standby.py:burst",
        "answered are",
        [
            (
                "shortcut",
                "                if standby.turns:\n                    standby.left = me\n                    standby.call_in()\n",
                "",
            )
        ],
    ),
    "who stands by does not look once more": (
        "standby.py:burst",
        "answered are",
        [
            (
                "standby",
                "            put(turn)\n            self.call_in()\n",
                "            put(turn)\n",
            )
        ],
    ),
    "an instance is left for ever to who was called in and has gone": (
        "standby.py:leaves",
        "answered are",
        [
            ("standby", "self.until = now + WAKE_S", 'self.until = float("inf")'),
            ("standby", "                    self.until = 0.0\n", "                    pass\n"),
        ],
    ),
    "who has gone is called in": (
        "standby.py:leaves",
        "answered are",
        [("standby", "                    turns.remove(turn)\n", "                    pass\n")],
    ),
    "a caller stands by for ever": (
        "standby.py:stands_by",
        "not in the queue",
        [("standby", "max(0.0, until - node.clock())", "-1")],
    ),
    "callers that do not come back are waited for": (
        "standby.py:returning",
        "deadlock|not over after",
        [
            (
                "dispatch",
                "            self.returning = 0\n",
                "            pass\n",
            )
        ],
    ),
    "who is given a batch is not named": (
        "destructors.py:one_node",
        "deadlock|not over after",
        [
            (
                "runners",
                "worker.take(self):\n            self.instance.ident = get_ident()\n",
                "worker.take(self):\n            pass\n",
            ),
            (
                "runners",
                (
                    "        node, instance = self.node, self.instance\n"
                    "        instance.ident = get_ident()\n"
                ),
                "        node, instance = self.node, self.instance\n",
            ),
        ],
    ),
    "an own thread is given a batch while it waits": (
        "destructors.py:own_threads",
        "deadlock|not over after|ended are",
        [
            (
                "deadlocks",
                ("elif owns and instance.thread is not None and instance.thread.ident == thread:"),
                "elif False:",
            ),
        ],
    ),
    "nobody tells the callers of a long batch": (
        "own_threads.py:put_off",
        "deadlock|not over after",
        [
            ("runners", "        end.rested.extend(locks)\n", ""),
        ],
    ),
    "finish gives True twice": (
        "pending.py:finish",
        "finish gave True",
        [("pending", " or record.asked is not None:", ":")],
    ),
    "a failed request is answered as a success": (
        "graphs.py:diamond_fails",
        "should fail",
        [("graph_request", "        entry.error, entry.state = error, DONE\n", LATE_ERROR)],
    ),
    "who waits for room is never let in": (
        "queues.py:room",
        "deadlock",
        [
            (
                "room",
                "            if home.room.outside:\n                home.note_change()\n",
                "",
            ),
        ],
    ),
    "cancel and an answer wait for each other": (
        "futures.py:cancel_one",
        "deadlock",
        [
            (
                "futures",
                "if ask(entry_box(self._entry), self._entry.node.cancel, self._entry) is True:",
                LOCKED_CANCEL,
            ),
            ("futures", "self._condition.acquire(blocking=False)", "self._condition.acquire()"),
            ("box", "        if after and self.steps:", "        if False:"),
        ],
    ),
    "the error of an element is lost": (
        "graphs.py:each_fails",
        "NoResultError",
        [
            (
                "graph_request",
                "            at_node.forget()\n",
                "            at_node.forget()\n            error = at_node.gather()\n",
            )
        ],
    ),
    "an instance is given back twice after Ctrl-C": (
        "interrupts.py:calls",
        "already entered|two threads in one instance",
        [
            (
                "shortcut",
                "if instance.holder is holder:  # else it was put back before the interrupt came",
                "if True:",
            )
        ],
    ),
    "submit waits for no room where it has not entered yet": (
        "own_threads.py:bound",
        "calls returned",
        [
            ("entrance", "and first.room.is_over:", "and first.room.outside:"),
        ],
    ),
    "a coroutine was told that nothing runs, and its dict is answered": (
        "coroutines.py:cancelled_while_kept",
        "the dict was the caller's",
        [
            (
                "futures",
                "        left |= node.fail(entry, withdrawn)\n",
                '        left |= entry.state != "pending" and node.fail(entry, withdrawn)\n',
            )
        ],
    ),
    "who detaches a probe takes the answers that it was to hear of": (
        "instances.py:probes",
        "deadlock|not over after",
        [
            (
                "events",
                "            post(node.box, node.tell, entry)\n",
                "            _ = self.settled and post(node.box, node.tell, entry)\n",
            )
        ],
    ),
    "close hears of no end": (
        "closing.py:own_threads",
        "close took",
        [
            ("closing", "        self.append(signal)\n", ""),
            (
                "closing",
                "        finally:\n            self.remove(signal)\n",
                "        finally:\n            pass\n",
            ),
            (
                "closing",
                "                signal.sleep(left)\n",
                "                self.append(signal)\n                signal.sleep(left)\n                self.remove(signal)\n",
            ),
        ],
    ),
    "after one worker nobody calls another one": (
        "inbox.py:last_look",
        "deadlock|not over after",
        [
            (
                "node",
                "        self.token[:] = [None]\n        if not self.free:",
                "        if not self.free:",
            ),
        ],
    ),
    "who comes is left to a thread that has begun a batch": (
        "inbox.py:idle_beside_a_held_thread",
        "deadlock",
        [
            ("runners", "            self.node.token[:] = [None]\n", "            pass\n"),
        ],
    ),
    "who puts an instance back does not look at the inbox": (
        "inbox.py:put_back",
        "deadlock|not over after",
        [
            ("shortcut", "if node.inbox or node.queue.count or node.special:", "if node.special:"),
        ],
    ),
    "who ends a batch does not look at the inbox": (
        "inbox.py:last_look",
        "deadlock|not over after",
        [
            ("node", "waits = self.inbox or self.queue.count or", "waits = self.queue.count or"),
        ],
    ),
    "what lies there is forgotten where a caller was quicker": (
        "inbox.py:two_instances",
        "deadlock|not over after",
        [
            (
                "dispatch",
                (
                    "        if not entries or not node.claim(instance):\n"
                    "            inbox.extendleft(reversed(entries))\n"
                ),
                "        if not entries or not node.claim(instance):\n",
            ),
        ],
    ),
    "a request that was given up is run": (
        "inbox.py:two_loops",
        "run after that",
        [
            ("dispatch", "if entry.state != NEW:  # it was withdrawn", "if False:"),
        ],
    ),
    "a closing node does not say that somebody has to look": (
        "inbox.py:refused",
        "after a close",
        [
            ("node", "if self.special or not self.watched", "if not self.watched"),
        ],
    ),
    "a caller runs its request on what a close has found idle": (
        "inbox.py:closed_while_idle",
        "after close",
        [
            (
                "shortcut",
                "if node.special:  # since the look above",
                "if False:  # since the look above",
            ),
        ],
    ),
    "who waited for callers is woken for ever": (
        "inbox.py:one_returns",
        "deadlock|not over after",
        [
            ("dispatch", "        node.lingerer = None\n", "        pass\n"),
        ],
    ),
    "who lies at another node counts for ever": (
        "inbox.py:walkers",
        "there was room",
        [
            ("dispatch", "                entry.ticket.leave(entry)\n", "                pass\n"),
        ],
    ),
    "close refuses who came before it": (
        "inbox.py:drained",
        "came before",
        [
            (
                "closing",
                "    node.take_in()\n    node.special = True\n",
                "    node.special = True\n",
            ),
        ],
    ),
    "what a graph leads is taken for a plain request": (
        "inbox.py:graph",
        "instead of",
        [
            (
                "node",
                "if entry.weight != 1 or entry.priority or entry.node is not self:",
                "if entry.weight != 1 or entry.priority:",
            ),
            (
                "dispatch",
                "late or entry.weight != 1 or entry.priority or entry.node is not self._node:",
                "late or entry.weight != 1 or entry.priority:",
            ),
        ],
    ),
    "nobody tells who waited for room": (
        "inbox.py:submit_returns",
        "submit has not returned",
        [
            (
                "room",
                (
                    "            self._node.queue.add(entry)\n"
                    "            if entry.room is not None:\n"
                    "                entry.room()\n"
                ),
                "            self._node.queue.add(entry)\n",
            ),
        ],
    ),
}


@pytest.fixture
def copy_of_core(tmp_path, monkeypatch):
    """Return the folder of a copy of core, which is imported from now on by programs that are explored."""
    shutil.copytree(Path(headrace.__file__).parent, tmp_path / "headrace")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "headrace"


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault, copy_of_core):
    program, seen, changes = FAULTS[fault]
    for module, text, other in changes:
        (path,) = (copy_of_core / "_run").rglob(f"{module}.py")
        source = path.read_text(encoding="utf-8")
        assert source.count(text) == 1, f"{module} has changed: where is {text!r} now?"
        path.write_text(source.replace(text, other), encoding="utf-8")
    with pytest.raises(InterleavingError, match=seen):
        explore(
            f"{FOLDER / program}",
            schedules=MOST_SCHEDULES,
            seed=FIRST_SEEDS.get(fault, 0),
            lines=lines_near(program, copy_of_core),
            minimise_s=0,
        )
