"""Script: plain Python for one request. Its calls of nodes share batches with the calls of all other requests."""

from __future__ import annotations

import ast
import inspect
import logging
import threading
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import GeneratorType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, TypeAdapter, ValidationInfo

import headrace
from headrace.errors import ClosedError, ContractError, InputError, SetupError, among

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from headrace.keys import Request

__all__ = ["Call", "Part", "Script", "call", "part"]

_log = logging.getLogger("headrace_flow.script")

_FILE: TypeAdapter[Path] = TypeAdapter(headrace.FilePath)
_HOMES = ("headrace_flow", "headrace_flow.script")
"""The modules from which `call` is imported."""
_REFUSED = "it runs the code of a file, and imports are refused here"


@dataclass(frozen=True)
class Call:
    """A call of a node, for a script to yield. `call` makes it.

    Attributes:
        node: The name of the node.
        request: The request for the node.
        errors: Whether an error is raised in the script, or is its value.
        whole: Whether its value is the whole request in place of ``result``.
        parts: Whether the node's parts become parts of the answer, or the text that labels them.
    """

    node: str
    request: Request
    errors: Literal["raise", "return"] = "raise"
    whole: bool = False
    parts: bool | str = True


@dataclass(frozen=True)
class Part:
    """A part of the answer, which a script yields; `part` makes it."""

    value: Any


def part(value: Any) -> Part:
    """Return a part of the answer, for a script to yield alone. A streaming caller gets it. The script goes on at once."""
    return Part(value)


def call(
    node: str,
    data: Any,
    /,
    *,
    errors: Literal["raise", "return"] = "raise",
    whole: bool = False,
    parts: bool | str = True,
    **keys: Any,
) -> Call:
    """Return a call of a node, for a script to yield: alone, or several in a list.

    Args:
        node: The name of the node.
        data: The ``data`` of its request.
        errors: ``"raise"``: the error of the call is raised at the ``yield``, of several the first in order, once all
            have ended. ``"return"``: the exception is the value of the call.
        whole: True for the whole dict of the request as the value, with all that the node has written. False for
            its ``result`` alone.
        parts: Where the node's parts go. True: they are parts of the answer. A text: they are, as ``(text, part)``, to
            tell the parts of several calls apart. False: they are dropped.
        keys: Further keys of its request.

    Raises:
        TypeError: ``node`` is no text.
        ValueError: ``errors`` or ``parts`` has another value.
    """
    if not isinstance(node, str):
        raise TypeError(
            f"the first argument of call is the name of a node, got {type(node).__name__}"
        )
    if errors not in ("raise", "return"):
        raise ValueError(f"errors is 'raise' or 'return', got {errors!r}")
    if type(parts) not in (bool, str):
        raise ValueError(f"parts is True, False or a text, got {parts!r}")
    return Call(node, {**keys, "data": data}, errors, whole, parts)


# The file of a script, which is read before anything is built, and run when it is built.


def _checked_script(path: Path, info: ValidationInfo) -> Path:
    """Check that the file of ``pages.py:page`` exists and has the function; nothing of it is run."""
    file, _, name = str(path).rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise ValueError("a script is named as pages.py:page, a file and a function in it")
    if (info.context or {}).get("allow_import") is False:
        raise ValueError(_REFUSED)
    source = _FILE.validate_python(file, context=info.context)
    _defined(_parsed(source), source.name, name)
    return Path(f"{source}:{name}")


def _parsed(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as error:
        raise ValueError(f"{file.name} cannot be read as Python: {error}") from error


def _functions(module: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}


def _defined(module: ast.Module, file: str, name: str) -> None:
    """Check that a function is defined at the top of a file, or that a name is bound there in another way."""
    functions = _functions(module)
    bound = {node.id for node in ast.walk(module) if isinstance(node, ast.Name)}
    imported = {(a.asname or a.name) for a in _aliases(module)}
    if name in functions or name in bound - functions.keys() or name in imported:
        return
    raise ValueError(f"{file} has no function {name!r}. {among(name, functions)}")


def _aliases(module: ast.Module) -> Iterator[ast.alias]:
    for node in ast.walk(module):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from node.names


def _constant_nodes(module: ast.Module, name: str) -> list[str]:
    """Return the nodes that a function, and those of its file that it names, call by a constant name."""
    functions, todo, visited = _functions(module), [name], set()
    names = _names_of_call(module)
    nodes: dict[str, None] = {}
    while todo:
        code = todo.pop()
        if code in visited or code not in functions:
            continue
        visited.add(code)
        for node in ast.walk(functions[code]):
            if isinstance(node, ast.Name):
                todo.append(node.id)
            elif isinstance(node, ast.Call) and node.args and ast.unparse(node.func) in names:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    nodes[first.value] = None
    return list(nodes)


def _names_of_call(module: ast.Module) -> set[str]:
    """Return the names by which a file knows `call`, as ``call`` and ``headrace_flow.call``."""
    names: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module in _HOMES:
            names |= {alias.asname or alias.name for alias in node.names if alias.name == "call"}
        elif isinstance(node, ast.Import):
            homes = [alias for alias in node.names if alias.name in _HOMES]
            names |= {f"{alias.asname or alias.name}.call" for alias in homes}
    return names


def _split(path: Path) -> tuple[Path, str]:
    file, _, name = str(path).rpartition(":")
    return Path(file), name


# One request on its way through a script.


class _Step:
    """The calls of one ``yield``, and what has come of them.

    Attributes:
        calls: The calls, in order.
        alone: Whether one call was yielded, and no list.
        errors: What has failed, by the place of the call.
        withdraw: What withdraws the calls that still wait.
    """

    def __init__(self, yielded: Any, name: str) -> None:
        self.alone = isinstance(yielded, Call)
        listed = [yielded] if self.alone else yielded
        if not isinstance(listed, (list, tuple)) or not all(
            isinstance(call, Call) for call in listed
        ):
            text = f"{name} yielded something of type {type(yielded).__name__}"
            hint = 'A script yields call("node", data), a list of such calls, or part(value).'
            raise ContractError(text, hint=hint)
        self.calls: list[Call] = list(listed)
        self.made = [dict(call.request) for call in self.calls]
        self.errors: dict[int, BaseException] = {}
        self.withdraw: list[Callable[[], object]] = []
        self._places = {id(request): place for place, request in enumerate(self.made)}
        self._open = len(self.calls) + 1  # one for `begin` itself
        self._lock = threading.Lock()

    def begin(
        self, request: Request, context: headrace.InitContext, ended: Callable[[], object]
    ) -> bool:
        """Hand the calls to their nodes, those of one node together. True when all have ended by then.

        ``ended()`` is called when the last one ends later.
        """

        def then(answer: Request, error: BaseException | None) -> None:
            if self._took(answer, error):
                ended()

        together: dict[tuple[str, bool | str], list[int]] = {}
        for place, call in enumerate(self.calls):
            together.setdefault((call.node, call.parts), []).append(place)
        for (node, parts), places in together.items():
            sent = [self.made[i] for i in places]
            try:
                self.withdraw.append(context.request.call(request, node, sent, then, parts=parts))
            except ContractError as error:
                text = error.what or f"no node is called {node!r}"
                for place in places:
                    self._took(self.made[place], InputError(text, hint=error.hint))
        return self._took(None, None)

    def _took(self, answer: Request | None, error: BaseException | None) -> bool:
        """Take note that a call has ended; True for the last one."""
        with self._lock:
            if error is not None:
                self.errors[self._places[id(answer)]] = error
            self._open -= 1
            return self._open == 0

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return the value of the ``yield``, or the error to raise there, once all calls have ended."""
        results: list[Any] = []
        for place, (call, answer) in enumerate(zip(self.calls, self.made, strict=True)):
            error = self.errors.pop(place, None)
            if error is not None and call.errors == "raise":
                return None, error
            value = answer if call.whole or error is not None else answer["result"]
            results.append(value if error is None else error)
        return results[0] if self.alone else results, None


class _Run:
    """One request on its way through a script. One thread at a time goes on with it.

    Attributes:
        generator: What the function has returned.
        step: The calls for which it waits. None before the first.
    """

    def __init__(self, generator: GeneratorType[Any, Any, Any]) -> None:
        self.generator = generator
        self.step: _Step | None = None
        self._lock = threading.Lock()
        self._runs = self._ended = False

    def enter(self) -> bool:
        """Begin to go on with the generator; False where it has ended."""
        with self._lock:
            self._runs = not self._ended
            return self._runs

    def leave(self) -> None:
        """Stop going on. If the run was ended meanwhile, this thread has to close the generator."""
        with self._lock:
            self._runs, ended = False, self._ended
        if ended:
            self._close()

    def end(self) -> None:
        """End the run: withdraw its calls and close the generator, whose ``finally`` runs; a second time changes nothing."""
        with self._lock:
            if self._ended:
                return
            self._ended, runs = True, self._runs
        if not runs:
            self._close()

    def _close(self) -> None:
        for withdraw in self.step.withdraw if self.step is not None else ():
            withdraw()
        try:
            self.generator.close()
        except BaseException as error:  # noqa: BLE001 - the request has its outcome already
            _log.error("a script raised while it was closed", exc_info=error)


class _Runs:
    """The suspended requests of all instances of a node, and the function that they run."""

    def __init__(self, path: Path) -> None:
        file, name = _split(path)
        self.function: Any = getattr(headrace.plugins.import_file(file), name, None)
        if not inspect.isgeneratorfunction(
            inspect.unwrap(self.function) if callable(self.function) else None
        ):
            hint = "Write a function that yields its calls: value = yield call('node', data)."
            raise SetupError(f"{name!r} in {file.name} is no generator function", hint=hint)
        self.open: set[_Run] = set()

    def close(self) -> None:
        """End what is left."""
        for run in list(self.open):
            run.end()
        self.open.clear()


class Script(headrace.Backend):
    """Run a generator per request. Its calls of nodes share batches with all others: ``Script(pages.py:page)``.

    The function gets a copy of the request. It yields `call`, or a list of calls, and is given their results. Its return
    value is the ``result``. While it waits it holds no thread and no instance. Deadline, cancellation and close end it
    with GeneratorExit, and withdraw its open calls.

    Script is the whole ``backend`` of a node. Do not put it into an ``S``: backends before it
    would run again at each step. A call runs one node, and ignores its ``next``. If the first argument of a call is a
    constant in the file, the name is checked before anything is built.

    Reads:
        data: Anything; and the keys read by the function.
    Writes:
        result: The value of the function; None without a value.
    Batch:
        1 or more. Items are independent.

    Raises:
        InputError: ``data`` is missing, or a call names no node.
        ContractError: The function yielded something else than calls.
        BackendError: The function raised. Its error is the cause.
    Source:
        own
    """

    class Options(headrace.Options):
        """Options of Script.

        Attributes:
            function: What to run, as `pages.py:page`: a file, relative to the configuration, and a generator function
                in it.
        """

        positional = ("function",)

        function: Annotated[headrace.OutputPath, AfterValidator(_checked_script)]

    uses_pipeline = True
    keeps = True

    @classmethod
    def nodes_called(cls, options: Any) -> Iterable[str]:
        """Return the nodes whose names are constants in the function, and in those of its file that it calls."""
        file, name = _split(options.function)
        return _constant_nodes(_parsed(file), name)

    def init(self, options: Any, context: headrace.InitContext) -> None:
        """Run the file."""
        if not context.allow_import:
            raise SetupError(
                f"Script: {_REFUSED}", hint="Load the configuration with imports allowed."
            )
        self.context, self._path = context, options.function
        self.name = _split(self._path)[1]
        key = ("headrace_flow.Script", str(self._path))
        self.runs: _Runs = context.store.node.get_or_create(key, lambda: _Runs(self._path))

    def describe(self) -> dict[str, Any]:
        """Return what it runs, and how many requests are suspended."""
        return {"script": self._path.name, "suspended": len(self.runs.open)}

    def forward(self, batch: list[Request]) -> list[Any]:
        """Go on with each request until it waits for calls, or has its result."""
        return [self._go_on(request) for request in batch]

    def _go_on(self, request: Request) -> Any:
        """Return the outcome of one request: None, an exception, or PENDING."""
        handle = self.context.request.kept(request)
        run: _Run | None = None if handle is None else handle.notes.get(Script)
        if handle is None or run is None:
            if "data" not in request:
                return InputError(
                    "the request has no 'data'", key="data", expected="anything", got="nothing"
                )
            copy = {key: value for key, value in request.items() if key != "result"}
            run = _Run(self.runs.function(copy))
            handle = self.context.request.keep(request)
        if not run.enter():
            return ClosedError("the script was ended by the close of its node")
        outcome: Any = headrace.PENDING
        try:
            outcome = self._until_it_waits(run, request, handle)
        finally:
            if outcome is not headrace.PENDING:
                run.end()
                self.runs.open.discard(run)
            run.leave()
        return outcome

    def _until_it_waits(self, run: _Run, request: Request, handle: Any) -> Any:
        asks = self.context.request
        step = run.step
        while True:
            value, error = (None, None) if step is None else step.outcome()
            if isinstance(
                error, ClosedError
            ):  # the pipeline closes: the script ends as by any close
                return error
            try:
                yielded = self._calls_of(run, handle, value, error)
            except StopIteration as stop:
                request["result"] = stop.value
                return None
            except Exception as raised:  # noqa: BLE001 - it is the outcome of this request alone
                return raised
            finally:
                error = (
                    None  # its traceback refers to this frame: kept here, it would close a cycle
                )
            if step is None:
                self._keep(run, handle)
            elif asks.unwanted(handle):
                return ClosedError("the caller no longer waits for the request")
            try:
                step = run.step = _Step(yielded, self.name)
            except ContractError as wrong:
                return wrong
            if not step.begin(request, self.context, partial(asks.resume, handle)):
                return headrace.PENDING

    def _calls_of(self, run: _Run, handle: Any, value: Any, error: BaseException | None) -> Any:
        """Go on with the generator; give the parts that it yields, and return what is to be calls."""
        go_on = run.generator
        try:
            yielded = go_on.send(value) if error is None else go_on.throw(error)
        finally:
            del error  # its traceback refers to this frame
        while isinstance(yielded, Part):
            if self.context.request.unwanted(handle):
                raise ClosedError("the caller no longer waits for the request")
            self.context.request.emit(handle, yielded.value)
            yielded = go_on.send(None)
        return yielded

    def _keep(self, run: _Run, handle: Any) -> None:
        """Have the run ended with its request, whatever its end is."""

        def ended(_: object) -> None:
            run.end()
            self.runs.open.discard(run)

        self.runs.open.add(run)
        handle.notes[Script] = run
        if not self.context.request.on_end(handle, ended):
            ended(handle)
