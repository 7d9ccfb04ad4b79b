"""What the page of each rule says in two sentences: the fault, and its cure."""

from __future__ import annotations

__all__ = ["CURES"]

CURES: dict[str, tuple[str, str]] = {
    "resolves": (
        "The expression of the conformance class names no backend, or another one than the entry point promises.",
        "Write the expression as it stands in a configuration, with the name under which the backend is registered.",
    ),
    "attributes": (
        "An attribute of the class has a value that core cannot use.",
        "Give the attribute the type that the message names, on the class.",
    ),
    "methods": (
        "A method cannot be called as core calls it, or would do nothing.",
        "Write it with the arguments that the message names, as a plain function that returns.",
    ),
    "private-names": (
        "The class, or `init`, uses a name that the base class keeps for itself.",
        "Choose another name for that attribute or method.",
    ),
    "options-described": (
        "An option has no description, or a number has no unit.",
        "Write a line for it in the section `Attributes` of the docstring of `Options`, as `wait_ms: How long, in ms.`",
    ),
    "options-strict": (
        "The class takes options that it does not have.",
        "Derive `Options` from `headrace.Options`, and leave its `model_config` alone.",
    ),
    "options-schema": (
        "An option has a type or a default that JSON Schema cannot express.",
        "Use plain types for options, and make the object of them in `init`.",
    ),
    "items": (
        "`make_item` gives something else for the same number, or no dict with text keys.",
        "Make each request anew from its number, with a seed of that number where it is random.",
    ),
    "docstring-sections": (
        "The docstring lacks one of the five sections.",
        "Write Reads, Writes, Batch, Raises and Source, each with a line at least.",
    ),
    "docstring-keys": (
        "The docstring names other keys than the class declares.",
        "Let Reads and Writes have an entry for each key of `reads` and `writes`, and no other.",
    ),
    "docstring-batch": (
        "The section Batch says another range than the backend has.",
        "Begin it with `min` and `max` of the class, and name the option that changes them.",
    ),
    "docstring-raises": (
        "The section Raises does not name the error of a request that is wrong.",
        "Add a line for InputError.",
    ),
    "docstring-results": (
        "What is written has another dtype or shape than the section Writes says.",
        "Convert the result, or correct the sentence.",
    ),
    "builds": (
        "`init` or `warm_up` fails for a configuration that is right.",
        "Let `init` fail only where the machine lacks something, and say in `unavailable` what.",
    ),
    "outcomes": (
        "`forward` returns something else than None or one outcome per request.",
        'Write results into `request["result"]`, and return None, or a list with an exception or None for each request.',
    ),
    "runs": (
        "A valid request fails, or gets no result.",
        'Write `request["result"]` for each request of the batch.',
    ),
    "finished-when-answered": (
        "A result is still being written when its caller reads it.",
        "Wait in `forward` for threads, and in a function given to `context.batch.at_end` for a device.",
    ),
    "life-cycle-again": (
        "The backend can be built only once in a process, or fails when it is closed.",
        "Keep on `self` what belongs to one life, make it in `init`, and free it in `close`.",
    ),
    "errors-returned": (
        "`backend(batch)` raises the error of a request.",
        "Leave `__call__` to the base class, and raise from `forward` only subclasses of Exception.",
    ),
    "range": (
        "A batch inside the range fails, or one outside of it runs.",
        "Set `min` and `max` to what `forward` can do, or cut the batch there.",
    ),
    "batch-equals-items": (
        "The result of a request depends on the others in its batch.",
        "Compute each row from itself alone, and cut off what fills the batch up.",
    ),
    "right-answers": (
        "The results are not those that `expected(k)` gives.",
        "Compare them with another library step by step, or correct `expected`.",
    ),
    "same-later": (
        "After thousands of requests the same request gets another result.",
        "Look for what counts, fills up or grows with each request, and give it a bound.",
    ),
    "options-used": (
        "`Options` has a field that no code uses.",
        "Use it in `init`, or take it out.",
    ),
    "instances-help": (
        "All instances take one lock, and hold it while they compute.",
        "Make in `init`, for each instance, what they compute with, and hold a shared lock only to look something up.",
    ),
    "order-kept": (
        "A request gets the result of another one.",
        "Write results by the place of their requests, and copy each batch into buffers that are kept by size.",
    ),
    "reads": (
        "The backend reads a key that `reads` lacks, or lacks a need for one that it names.",
        "Declare each key that `forward` looks at in `reads`, those that may be missing in a TypedDict.",
    ),
    "writes": (
        "The backend sets or removes a key that `writes` lacks, or does not set one that it names.",
        "Declare each key that `forward` sets in `writes`, and set all of them alone and in batches.",
    ),
    "works-after-failure": (
        "After a bad request, valid ones get other results.",
        "Keep on `self` nothing that the request in hand changes.",
    ),
    "missing-key": (
        "A request without a key gets a result, or an error that does not name the key.",
        "Raise `InputError(key=...)` where the key is missing.",
    ),
    "closes-unused": (
        "`close` fails where `warm_up` or `forward` has not run.",
        "Set in `init` all that `close` frees.",
    ),
    "called-in-order": (
        "The backend runs after `close`, or after an `init` that failed.",
        "Leave `__call__` to the base class, and write `forward`.",
    ),
    "batch-list-kept": (
        "`forward` changes the list of requests that it is given.",
        "Work on a copy, `list(batch)` or `sorted(batch)`.",
    ),
    "empty-batch": (
        "An empty batch reaches `forward`, or gets an answer.",
        "Leave `__call__` to the base class.",
    ),
    "inputs-kept": (
        "The values that a request came with are changed.",
        "Compute into new memory: `sorted(x)` in place of `x.sort()`, `x * 2` in place of `x *= 2`.",
    ),
    "views-read": (
        "An array with another memory layout gives another result, or fails.",
        "Make it contiguous where the library needs that: `numpy.ascontiguousarray(x)`.",
    ),
    "results-kept": (
        "The memory of a result is used again for a later one.",
        "Copy what leaves the backend out of its buffers.",
    ),
    "extra-keys-pass": (
        "Keys that the backend does not know change the result, or are changed.",
        "Read and write declared keys by their names.",
    ),
    "wrong-type": (
        "A value of a wrong type gets a result, or an error that is no InputError.",
        'Test the type first, and raise `InputError(key="data", expected=..., got=...)`.',
    ),
    "wrong-shape": (
        "An array of a wrong shape gets a result, or an error that is no InputError.",
        "Compare `x.ndim` and `x.shape` first, and raise InputError.",
    ),
    "wrong-dtype": (
        "An array of a wrong dtype gets a result, or an error that is no InputError.",
        "Compare `x.dtype` first, and raise InputError, or name the dtype in the section Reads.",
    ),
    "rerun": (
        "A request that is run again gets another result, though `rerun` is True.",
        "Leave what is read as it was, or set `rerun = False`.",
    ),
    "bad-item-alone": (
        "One bad request of a batch fails others, or gives them another result.",
        "Try each request by itself, and return its exception in its place of the list.",
    ),
    "errors-pickle": (
        "An error cannot be pickled, or says something else afterwards.",
        "Define its class at the top of a module, and give all arguments to `super().__init__`.",
    ),
    "interrupts-pass": (
        "Ctrl-C is caught, or leaves the backend unusable.",
        "Catch `Exception`, never `BaseException`, and undo in `finally` what must not stay.",
    ),
    "children-called": (
        "A container calls `forward` of a child, or passes on what has failed.",
        "Call `child(batch)` with the requests that have no error yet.",
    ),
    "imports-lazily": (
        "Importing the backend loads a heavy library, or one that its distribution does not require.",
        "Import the library in `init`, and name it in `dependencies` of `pyproject.toml`.",
    ),
    "missing-library": (
        "Where the library is missing, another error comes than that which says what to install.",
        "Let the ImportError leave `init`.",
    ),
    "options-kept": (
        "`init` changes the options that all instances share.",
        "Copy a list or table before you change it.",
    ),
    "describe": (
        "`describe()` gives no dict that JSON can hold, or other keys after a request.",
        "Return a dict of numbers, texts, lists and dicts with keys that stay.",
    ),
    "threads-in-turn": (
        "The backend works only in the thread that has built it.",
        "Set `owns_thread = True`, or keep nothing in `threading.local()`.",
    ),
    "instances-agree": (
        "Two instances disturb each other.",
        "Keep on `self` what changes, not on the class or in the module.",
    ),
    "thread-state-kept": (
        "The thread that ran a batch has another state afterwards.",
        "Change it in a `with` that puts it back, or set `owns_thread = True`.",
    ),
    "threads-left": (
        "A thread or process is still there after `close`.",
        "End it in `close`, and wait for it with `join`.",
    ),
    "files-left": (
        "A file is still open, or a temporary one still there, after `close`.",
        "Open files in a `with`, or close them in `close`.",
    ),
    "warnings-left": (
        "A life of the backend emits a warning.",
        "Close what you open, and do what the warning asks for.",
    ),
    "device-memory-left": (
        "Memory of a device is still taken after `close`.",
        "Free in `close` what `init` has allocated.",
    ),
    "process-state-kept": (
        "The backend changes something of the process, or prints.",
        "Set it for your own objects only, or put it back, and log in place of `print`.",
    ),
    "requests-released": (
        "Memory grows with the number of requests.",
        "Give every list and cache a bound, and free in C what you allocate there.",
    ),
}
