"""Process: a backend in a process of its own."""

from __future__ import annotations

import contextlib
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace._build.parcels import CLOSE_S, apply, packed, receive, send
from headrace._build.word import Word
from headrace._plan.declared import keys_named
from headrace._plan.word import planned_word
from headrace._portable import error_text
from headrace.errors import BackendError, InputError, InstanceLostError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace._backend import Backend, InitContext
    from headrace._build.at import At
    from headrace._build.word import Building
    from headrace._checked import Outcomes
    from headrace._plan.declared import Needs
    from headrace._plan.element import Element
    from headrace._plan.word import Use
    from headrace.keys import Request

__all__ = ["Process"]

_CHILD = "import sys; sys.path[:] = {path!r}; from headrace._worker import main; main()"


class Process(Word):
    """Let X live in a process of its own: ``Process[X]``.

    As `BackgroundThread`, but X has an interpreter, an interpreter lock and a memory of its own: for
    Python code that computes and holds the lock, for a library that several instances cannot share in
    one process, for one that may crash. A process that dies fails its batch, and its instance is out
    of service. ``init``, every ``forward`` and ``close`` of X happen in the main thread there.

    Requests go there and back as copies, made by ``pickle``: that costs time for large arrays. A key
    that cannot be copied stays here if X does not say that it reads it. What X names must be inside:
    queues, nodes and registered instances of the pipeline are not there. A class or function that
    X uses must be importable: part of an installed module, or of a file that the configuration
    imports.

    Reads:
        What X reads.
    Writes:
        What X writes.
    Batch:
        The range of X.

    Raises:
        What X raises; InputError when a key that X reads cannot be copied; InstanceLostError when
        the process has died.
    Source:
        own
    Example:
        ``{"data": "fish &amp; chips"}`` gives ``"FISH & CHIPS"``::

            backend = "S[Process[Call(html:unescape)],Upper]"
    """

    takes = 1
    _threaded = True
    _process: Any  # a Popen

    @classmethod
    def _check(cls, use: Use) -> bool:
        """Check that all that stands inside is there; report what is not."""
        children = use.element.children
        inside = list(children[0].walk()) if children else []
        own = {id(one) for one in inside}
        for one in inside:
            named = one.named
            outside = named is not None and (named.registered or id(named.element) not in own)
            if outside or planned_word(one.cls)._reaches_out:
                message = (
                    f"{one.name} cannot stand in {use.element.name}: it reaches for something of "
                    "the pipeline, which another process does not have"
                )
                use.planning.add("process", message, one.call, use.scope)
                return False
        return True

    @classmethod
    def _needs(
        cls, element: Element, inner: Callable[[Element], Needs], built: Backend | None
    ) -> Needs:
        """Give what is needed inside, which the other process has told once it is built."""
        if built is None:
            return inner(element.children[0])
        return dict.fromkeys(keys_named(built, None, "reads"), element.name)

    @classmethod
    def _build(cls, building: Building, element: Element, at: At) -> Backend:
        """Build it in a thread that starts the process and talks with it."""
        return building.in_thread(
            element, element, lambda one, inside: building.backend(one, (), inside), at
        )

    def _prepare(self, building: Building, element: Element, at: At) -> None:
        """Take note of what is to live there."""
        self._inside = element.children[0]
        self._keys = building.node.keys if building.node is not None else None
        self._files = [path for path, _ in building.plan.files]
        self._threads = building.threads
        named = [keys_named(one.cls, one.options, "reads") for one in self._inside.walk()]
        self._read_there = {key for keys in named for key in keys}

    def init(self, options: Any, context: InitContext) -> None:
        """Start the process, build X there, and take over its range.

        Raises:
            SetupError: It could not be built, or the process ended.
        """
        about = {
            "node": context.node_name,
            "keys": self._keys,
            "index": context.instance_index,
            "element": self._inside,
            "threads": self._threads,
            "allow_import": context.allow_import,
        }
        try:
            plan = packed(about)
        except Exception as error:
            raise SetupError(
                f"what stands in Process cannot be sent to another process: {error_text(error)}",
                hint="Let its classes and functions be importable: put them into a module, or into a "
                "file that the configuration imports.",
            ) from error
        command = [sys.executable, "-c", _CHILD.format(path=[str(Path(p)) for p in sys.path])]
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        built = threading.Event()
        watch = threading.Thread(target=self._watch, args=(context.cancelled, built), daemon=True)
        watch.start()
        try:
            answer = self._ask({"files": self._files, "plan": plan})
        except (OSError, EOFError):
            raise SetupError(f"the process ended with status {self._status()}") from None
        finally:
            built.set()
        if isinstance(answer, BaseException):
            self._kill()
            raise answer
        self._about: dict[str, Any] = answer
        self.min, self.max, self.rerun = answer["min"], answer["max"], answer["rerun"]  # type: ignore[misc]
        self.reads = answer["reads"]

    def _watch(self, cancelled: Callable[[], bool], built: threading.Event) -> None:
        """End the process when the build is given up."""
        while not built.wait(0.1):
            if cancelled():
                self._kill()
                return

    def forward(self, batch: list[Request]) -> Outcomes:
        """Run X on the batch in its process.

        Raises:
            InstanceLostError: The process has died.
        """
        outcomes: list[Exception | None] = []
        sent: list[bytes] = []
        for request in batch:
            try:
                sent.append(self._parcel(request))
                outcomes.append(None)
            except InputError as error:
                outcomes.append(error)
        alive = [request for request, error in zip(batch, outcomes, strict=True) if error is None]
        if alive:
            try:
                answers = self._ask(sent)
            except (OSError, EOFError):
                raise InstanceLostError(
                    f"its process has died, with status {self._status()}",
                    hint="Pipeline.reload starts another.",
                ) from None
            answered = map(_taken, alive, answers)
            outcomes = [next(answered) if error is None else error for error in outcomes]
        return outcomes if any(outcomes) else None

    def _parcel(self, request: Request) -> bytes:
        """Give a request as bytes, without what nobody there reads and pickle does not take."""
        try:
            return pickle.dumps(request, pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001 - whatever its values raise
            kept = {}
            for key, value in request.items():
                try:
                    pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
                    kept[key] = value
                except Exception as error:
                    if key in self._read_there:
                        raise InputError(
                            f"it cannot be sent to another process: {error_text(error)}",
                            key=key,
                            expected="something that pickle takes",
                            got=type(value).__name__,
                        ) from error
            return pickle.dumps(kept, pickle.HIGHEST_PROTOCOL)

    def describe(self) -> dict[str, Any]:
        """Give the number of the process, and what was built there."""
        return {"process": self._about["process"], "tree": self._about["tree"]}

    def close(self) -> None:
        """Close X and end the process; one that does not end is killed."""
        process = self._process
        with contextlib.suppress(OSError):
            process.stdin.close()  # the process takes it for the end
        try:
            process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        process.stdout.close()
        process.wait()

    # The pipe to the process, which one thread at a time uses.

    def _ask(self, message: Any) -> Any:
        send(self._process.stdin, message)
        return receive(self._process.stdout)

    def _status(self) -> int:
        """Wait for a process whose pipe is closed, and give how it ended."""
        self._kill(wait_s=1.0)
        status: int = self._process.returncode
        return status

    def _kill(self, wait_s: float = 0.0) -> None:
        process = self._process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(wait_s)
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()


def _taken(request: Request, answer: tuple[bytes, bytes]) -> Exception | None:
    """Do to a request what was done to its copy; give its outcome."""
    found, outcome = answer
    try:
        apply(pickle.loads(found), request)  # noqa: S301 - from our own process
        error: Exception | None = pickle.loads(outcome)  # noqa: S301
    except Exception as lost:  # noqa: BLE001 - a class that is not known here
        return BackendError(f"what its process answered is unknown here: {error_text(lost)}")
    if isinstance(error, InstanceLostError):
        error.node = None  # raised anew here, so that the instance is known to be lost
    return error
