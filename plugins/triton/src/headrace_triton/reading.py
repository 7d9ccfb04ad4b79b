"""What the ``config.pbtxt`` of one model stands for: a node, and what clients are told of it."""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Any, Final

import headrace
from headrace import keys
from headrace.errors import ConfigError, InputError, Problem, among
from headrace_triton.pbtxt import Message, Place, of_json, read
from headrace_triton.python.source import NOT_HERE, missing_names
from headrace_triton.schema import DATATYPES, ENUMS, MESSAGES
from headrace_triton.tensors import SEQUENCE

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Model", "read_model"]

_PLATFORMS: Final = {
    "onnxruntime_onnx": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "ensemble": "ensemble",
}
_FILES: Final = {
    "onnxruntime": ("model.onnx", "OnnxTensor"),
    "tensorrt": ("model.plan", "TensorrtTensor"),
    "pytorch": ("model.pt", "TorchModule"),
    "python": ("model.py", "Process[TritonPython]"),
}
"""The file that a version has, and what runs it, by backend."""

_PARAMETERS: Final = {
    "EXECUTION_ENV_PATH": "a model runs in the environment of the server, which needs its packages",
    "TRITON_BATCH_STRATEGY_PATH": "a batch takes all that waits, up to `max_batch_size`",
}
"""Parameters that Triton reads itself, for any backend, and what holds in their place."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_MOST_INSTANCES: Final = 4096
_DEFAULTS: Final = {names[0] for names in ENUMS.values()}
_SETTABLE: Final = ("max_batch_size", "instance_group", "dynamic_batching")
"""What a request may say of a model that it loads."""


def read_model(folder: Path) -> Model:
    """Read the folder of one model, with or without ``config.pbtxt``.

    Raises:
        ConfigError: The configuration cannot be read, or asks for what there is not. It has all problems of the model.
    """
    file = folder / "config.pbtxt"
    there = file.exists()
    config = read(file) if there else Message("ModelConfig", Place(str(folder)))
    return Model(folder, config)


class Model:
    """One model of a repository.

    Attributes:
        folder: Its folder.
        name: Its name, that of the folder.
        config: Its configuration, as it is written.
        backend: One of ``onnxruntime``, ``tensorrt``, ``pytorch``, ``python``, ``identity`` and ``ensemble``.
        versions: The versions that are served, the newest first.
        rows: Its ``max_batch_size``, completed where it is left out. 0: tensors have no axis of the batch.
        warnings: What means something else here, with its place.
        origins: Where the value of each key of the node comes from.
    """

    def __init__(self, folder: Path, config: Message) -> None:
        self.folder, self.name, self.config = folder, folder.name, config
        self.warnings: list[Problem] = []
        self.origins: dict[str, Place] = {}
        self._problems: list[Problem] = []
        if config.one("name") not in ("", self.name):
            problem = f"the model is named {config.one('name')!r}, and its folder {self.name!r}"
            self.wrong(config.at("name"), problem, "Triton refuses it too: rename one of them.")
        if not _NAME.fullmatch(self.name):
            problem = f"{self.name!r} is no name of a model here"
            rule = "A name has the characters A-Z a-z 0-9 _ . - and begins with a letter or digit."
            self.wrong(config.place, problem, rule)
        numbers = [int(version.name) for version in folder.iterdir() if _is_version(version)]
        self.versions = self._served(sorted(numbers, reverse=True))
        self.backend = self._backend()
        self._look(config)
        self.file = config.one("default_model_filename") or _FILES.get(self.backend, ("", ""))[0]
        self.rows = config.one("max_batch_size")
        if self.rows < 0:
            self.wrong(config.at("max_batch_size"), "`max_batch_size` is 0 or more")
        for version in self.versions if self.file else ():
            self._check_file(folder / str(version) / self.file, version)
        self._check_ports()
        self.check()
        completed = self.backend == "onnxruntime" and not {"max_batch_size", "input"} & {*config}
        if completed:
            path = self._path(self.versions[0])
            self.rows = 4 if "max" in (headrace.plugins.tables_of(path) or {}) else 0
        self.node = self._node()
        self.check()

    def _check_file(self, path: Path, version: int) -> None:
        """Note that a version lacks its file, or what the code in it asks for and is not here."""
        if not path.is_file():
            near = ", ".join(sorted(file.name for file in path.parent.iterdir()))
            problem, hint = f"version {version} has no file {self.file!r}", f"There are: {near}."
            self.wrong(self.config.at("default_model_filename"), problem, hint if near else None)
            return
        try:
            names = [*missing_names(path.read_bytes())] if self.backend == "python" else []
        except (SyntaxError, ValueError) as error:
            line, column = getattr(error, "lineno", None), getattr(error, "offset", None)
            problem = error.msg if isinstance(error, SyntaxError) else str(error)
            self.wrong(Place(str(path), line, column), f"it is no Python: {problem}")
            return
        for name, line, column in names:
            problem = f"`{name}` of pb_utils has no counterpart here"
            self.wrong(Place(str(path), line, column), problem, NOT_HERE[name])

    def wrong(self, place: Place, problem: str, hint: str | None = None) -> None:
        """Note a problem, which `check` raises."""
        self._problems.append(place.problem(problem, hint))

    def check(self) -> None:
        """Raise the problems noted since the last time, if there are any.

        Raises:
            ConfigError: There are.
        """
        problems, self._problems = self._problems, []
        if problems:
            raise ConfigError(problems)

    def _warn(self, place: Place, problem: str) -> None:
        self.warnings.append(place.problem(problem))

    def _served(self, there: list[int]) -> list[int]:
        """Return the versions that the policy chooses of those that are there."""
        policy, place = self.config.one("version_policy"), self.config.at("version_policy")
        if "all" in policy:
            chosen = there
        elif "specific" in policy:
            numbers = policy.one("specific").all("versions")
            chosen = [number for number in there if number in numbers]
            for number in {*numbers}.difference(there):
                self.wrong(policy.at("specific"), f"there is no version {number}, such as a folder")
        else:
            chosen = there[: policy.one("latest").one("num_versions") or 1]
        if not chosen and not self._problems:
            problem = "the model has no version: a folder whose name is a number of 1 to 18 digits"
            hint = f"Make a folder {self.folder / '1'}."
            if there:
                problem, hint = "the policy chooses no version", f"There are: {there}."
            self.wrong(place, problem, hint)
        return chosen

    def _backend(self) -> str:
        """Return the backend, where it is left out by the file that the newest version has."""
        config = self.config
        platform, backend = config.one("platform"), config.one("backend")
        if not (platform or backend):
            file = config.one("default_model_filename")
            for name, (usual, _) in _FILES.items():
                chosen = file or usual
                ends = usual.rpartition(".")[2] == chosen.rpartition(".")[2]
                if ends and any(
                    (self.folder / str(v) / chosen).is_file() for v in self.versions[:1]
                ):
                    return name
            if "ensemble_scheduling" in config:
                return "ensemble"
            usual_ones = ", ".join(file for file, _ in _FILES.values())
            problem = f"the model names no backend, and its newest version has none of {usual_ones}"
            self.wrong(config.place, problem)
            return ""
        word = backend or _PLATFORMS.get(platform, platform)
        known = (*_FILES, "identity", "ensemble")
        if word not in known:
            field = "backend" if backend else "platform"
            problem = f"there is no backend {word!r} here"
            self.wrong(config.at(field), problem, among(str(word), known))
        if (
            platform and _PLATFORMS.get(platform, platform) != word != "python"
        ):  # a model.py reads it
            problem = f"the platform {platform!r} is not of the backend {backend!r}"
            self.wrong(config.at("platform"), problem)
        return str(word)

    def _look(self, message: Message) -> None:
        """Note what has no counterpart, and what means something else, in a message and those inside."""
        for name in message:
            values, field = [*filter(_says, message.all(name))], MESSAGES[message.kind][name]
            if values and field.row.mark == "refused":
                self.wrong(message.at(name), f"`{name}` has no counterpart here", field.row.why)
            elif values and field.row.mark == "left out":
                self._warn(message.at(name), f"`{name}` is left out: {field.row.why}")
            for value in values if field.row.mark == "obeyed" else ():
                inner = value[1] if isinstance(value, tuple) else value
                if isinstance(inner, Message):
                    self._look(inner)

    def _check_ports(self) -> None:
        config = self.config
        for side in ("input", "output"):
            names: set[str] = set()
            for port, place in zip(config.all(side), config.places.get(side, ()), strict=True):
                name = port.one("name")
                if not name:
                    self.wrong(place, f"an {side} needs a `name`")
                if name in names:
                    self.wrong(port.at("name"), f"there are two {side}s {name!r}")
                names.add(name)
                if side == "input" and name in {*keys.RESERVED} - {keys.DATA}:
                    problem = f"an input cannot be named {name!r}, which is a key of every request"
                    self.wrong(port.at("name"), problem)
                self._check_tensor(port, f"{side} {name!r}")

    def _check_tensor(self, port: Message, title: str) -> None:
        if port.one("data_type") not in DATATYPES:
            self.wrong(port.at("data_type"), f"{title} needs a `data_type`")
        for n, at in zip(port.all("dims"), port.places.get("dims", ()), strict=True):
            if n == 0 or n < -1:
                self.wrong(at, f"a length is 1 or more, or -1 for any, got {n}")
        if "dims" not in port:
            self.wrong(port.place, f"{title} needs `dims`")
        if "reshape" in port:
            self._check_reshape(port, title)

    def _check_reshape(self, port: Message, title: str) -> None:
        dims, shape = port.all("dims"), port.one("reshape").all("shape")
        free = [sum(n < 0 for n in each) for each in (dims, shape)]
        if free[0] != free[1] or (not free[0] and math.prod(dims) != math.prod(shape)):
            problem = f"{title} of shape {dims} cannot be given the shape {shape}"
            self.wrong(port.at("reshape"), problem)

    def _path(self, version: int) -> Path:
        return self.folder.absolute() / str(version) / self.file

    def _set(self, node: dict[str, Any], key: str, value: Any, place: Place) -> None:
        node[key], self.origins[key] = value, place

    def _node(self) -> dict[str, Any]:
        """Return the node of the model, without the file of a version."""
        config = self.config
        node: dict[str, Any] = {}
        place = config.at("backend") if "backend" in config else config.at("platform")
        own = {"identity": "Identity", "ensemble": "TritonEnsemble"}
        word = own.get(self.backend) or _FILES[self.backend][1]
        changed = any("reshape" in port for port in (*config.all("input"), *config.all("output")))
        sequences = "sequence_batching" in config
        if (changed or sequences) and self.backend != "ensemble":
            word = f"TritonTensors[{word}]"
        if sequences:
            word = f"StateFul({SEQUENCE})[{word}]"
            self._sequences(node)
        self._set(node, "backend", word, place)
        if (
            self.backend != "python" or "max_batch_size" in config
        ):  # else auto_complete_config decides
            self._set(node, "max", max(1, self.rows), config.at("max_batch_size"))
        self._instances(node)
        self._batching(node)
        if self.backend in _FILES and self.backend != "python":
            self._tensors(node)
        sides = len(config.all("input")), len(config.all("output"))
        if self.backend == "identity" and sides != (1, 1):
            self.wrong(place, "the backend identity needs one input and one output")
        for index, (name, _) in enumerate(config.all("parameters")):
            why = _PARAMETERS.get(name)
            if why is None and self.backend not in ("python", "ensemble"):
                why = f"write it as an option of {word}"
            if why is not None:
                self._warn(config.at("parameters", index), f"parameter {name!r} is left out: {why}")
        if self.backend in ("python", "ensemble") or changed or sequences:
            self._set(node, "config", json.dumps(self.printed()), config.place)
        return node

    def _instances(self, node: dict[str, Any]) -> None:
        groups = self.config.all("instance_group")
        devices: list[str | None] = []
        for group, place in zip(groups, self.config.places.get("instance_group", ()), strict=True):
            count, kind, gpus = group.one("count") or 1, group.one("kind"), group.all("gpus")
            if not 0 < count <= _MOST_INSTANCES:
                self.wrong(group.at("count"), f"`count` is from 1 to {_MOST_INSTANCES}")
                continue
            if kind in ("KIND_CPU", "KIND_MODEL") and gpus:
                self.wrong(group.at("gpus"), f"a group of {kind} has no `gpus`")
            if kind == "KIND_GPU" and not gpus:
                self._warn(place, "KIND_GPU without `gpus` is the first GPU here, not each one")
            on: list[str | None] = [f"cuda:{gpu}" for gpu in gpus]
            if not on:
                on = [{"KIND_CPU": "cpu", "KIND_GPU": "cuda:0"}.get(kind)]
            devices += [device for device in on for _ in range(count)]
        if groups and self.backend == "ensemble":
            self.wrong(self.config.at("instance_group"), "an ensemble has no instances")
        if len(devices) > 1:
            self._set(node, "instance_num", len(devices), self.config.at("instance_group"))
        named: list[str] = [device or "cpu" for device in devices]
        if any(devices):
            value: Any = named[0] if len({*named}) == 1 else named
            self._set(node, "device", value, self.config.at("instance_group"))

    def _batching(self, node: dict[str, Any]) -> None:
        batching = self.config.one("dynamic_batching")
        delay = batching.one("max_queue_delay_microseconds")
        if delay:
            at = batching.at("max_queue_delay_microseconds")
            self._set(node, "batching_timeout", delay / 1000, at)
        queue = batching.one("default_queue_policy")
        most, timeout = queue.one("max_queue_size"), queue.one("default_timeout_microseconds")
        if most:
            self._set(node, "queue_size", most, queue.at("max_queue_size"))
            self._set(node, "queue_full", "reject", queue.at("max_queue_size"))
        if timeout and queue.one("timeout_action") == "DELAY":
            self.wrong(
                queue.at("timeout_action"), "`timeout_action: DELAY` has no counterpart here"
            )
        elif timeout:
            at = queue.at("default_timeout_microseconds")
            self._set(node, "timeout_ms", timeout / 1000, at)
            self._warn(
                at, "`default_timeout_microseconds` also counts the run, not the queue alone"
            )

    def _tensors(self, node: dict[str, Any]) -> None:
        """Name the inputs and outputs of a model file that describes itself."""
        config = self.config
        names = {
            side: [port.one("name") for port in config.all(side)] for side in ("input", "output")
        }
        if not self.rows:
            self._set(node, "unbatched", "all", config.at("max_batch_size"))
        by_index = [name for both in names.values() for name in both if "__" in name]
        if self.backend == "pytorch" and by_index:
            if len(names["input"]) > 1 or len(names["output"]) > 1:
                problem = f"{by_index[0]!r} names a tensor by its index, which there is for a single one alone"
                hint = (
                    "Name inputs as forward() does, and let it return a dict by the outputs' names."
                )
                self.wrong(config.at("input"), problem, hint)
            return
        if names["input"]:
            keyed = {name: name for name in names["input"]}
            self._set(node, "inputs", keyed, config.at("input"))
        if names["output"]:
            states = [
                state.one("output_name") for state in config.one("sequence_batching").all("state")
            ]
            self._set(node, "outputs", names["output"] + states, config.at("output"))

    def _sequences(self, node: dict[str, Any]) -> None:
        """Keep the state of sequences by their number, and give the model its inputs of control."""
        config = self.config
        sequences, place = config.one("sequence_batching"), config.at("sequence_batching")
        idle = sequences.one("max_sequence_idle_microseconds") or 1_000_000
        self._set(node, "idle_s", idle / 1e6, sequences.at("max_sequence_idle_microseconds"))
        states = sequences.all("state")
        keys = {state.one("output_name"): state.one("input_name") for state in states}
        self._set(node, "keep", keys, sequences.at("state") if keys else place)
        node["initial"] = "none"
        for control in sequences.all("control_input"):
            if len(control.all("control")) != 1:
                self.wrong(control.place, f"{control.one('name')!r} needs one `control`")
        files: dict[str, str] = {}
        for state in states:
            first = state.all("initial_state")
            about = first[0] if first else state
            if len(first) > 1 or any(n < 1 for n in about.all("dims")):
                problem = f"the first state of {state.one('input_name')!r} needs one `initial_state` with lengths"
                self.wrong(state.place, problem)
            if about.one("data_type") not in {*DATATYPES} - {"TYPE_STRING", "TYPE_BF16"}:
                self.wrong(about.at("data_type"), "a state needs a `data_type` of numbers")
            file = first[0].one("data_file") if first else ""
            if file and not (self.folder / "initial_state" / file).is_file():
                self.wrong(first[0].at("data_file"), f"there is no file {file!r} in initial_state")
            if file:
                path = str(self.folder.absolute() / "initial_state" / file)
                files[state.one("input_name")] = path.replace("${", "$${")
        if files:
            self._set(node, "first_states", files, sequences.at("state"))

    def called(self) -> list[str]:
        """Return the names of the models that it calls as an ensemble."""
        steps = self.config.one("ensemble_scheduling").all("step")
        return [step.one("model_name") for step in steps]

    def pipeline(self, version: int) -> dict[str, Any]:
        """Return the tables of the pipeline of a version."""
        if self.backend not in _FILES:
            return dict(self.node)
        path = str(self._path(version)).replace("${", "$${")
        return {"backend": self.node["backend"], "model": path, **self.node}

    def told(self) -> dict[str, Any]:
        """Return what a serving file says of the model beside its pipeline."""
        table: dict[str, Any] = {}
        by_index = "inputs" not in self.node and self.backend == "pytorch"
        if self.backend in ("python", "ensemble", "identity") or by_index or "config" in self.node:
            for side in ("input", "output"):
                ports = {port.one("name"): self._port(port, side) for port in self.config.all(side)}
                table |= {f"{side}s": ports} if ports else {}
        if self.config.one("model_transaction_policy").one("decoupled"):
            table["decoupled"] = True
        labels = {
            port.one("name"): str(self.folder.absolute() / port.one("label_filename"))
            for port in self.config.all("output")
            if port.one("label_filename")
        }
        for port in self.config.all("output"):
            file = port.one("label_filename")
            if file and not (self.folder / file).is_file():
                self.wrong(port.at("label_filename"), f"there is no file {file!r} of labels")
        self.check()
        return table | ({"labels": labels} if labels else {})

    def _port(self, port: Message, side: str) -> dict[str, Any]:
        shape = [*([-1] if self.rows else []), *port.all("dims")]
        table: dict[str, Any] = {"datatype": DATATYPES[port.one("data_type")], "shape": shape}
        if side == "output":
            leaves_out = self.backend in ("python", "ensemble")
            return table | ({"optional": True} if leaves_out else {})
        single = self.backend in ("identity", "pytorch")
        table |= {"key": "data" if single else port.one("name")}
        table |= {"batched": True} if self.rows else {"each": False}
        return table | ({"optional": True} if port.one("optional") else {})

    def printed(self) -> dict[str, Any]:
        """Return the configuration as Triton prints it, with what it completes."""
        config = self.config.as_json()
        group = {"name": self.name, "kind": "KIND_CPU", "count": 1, "gpus": []}
        groups = config["instance_group"]
        for number, own in enumerate(groups):
            own |= {"name": own["name"] or f"{self.name}_{number}", "count": own["count"] or 1}
        config |= {
            "name": self.name,
            "backend": "" if self.backend == "ensemble" else self.backend,
            "max_batch_size": self.rows,
            "instance_group": [] if self.backend == "ensemble" else groups or [group],
            "default_model_filename": self.file,
        }
        if self.backend == "ensemble":
            config["platform"] = "ensemble"
        config.setdefault("version_policy", {"latest": {"num_versions": 1}})
        return config

    def changed(self, override: Mapping[str, Any]) -> Model:
        """Return the model with other instances and batches, as a request may ask for that loads it.

        Raises:
            ConfigError: It changes something else, which would be code of the request.
            InputError: It holds values that there are not.
        """
        before = self.printed()
        for name, value in override.items():
            if name not in _SETTABLE and value != before.get(name, ()):
                problem = f"`{name}` cannot be changed by a request, only {', '.join(_SETTABLE)}"
                raise ConfigError(Problem("triton", problem))
        values = _filled({name: setting for name, setting in override.items() if name in _SETTABLE})
        try:
            model = self._with(of_json(json.dumps(values), "the configuration of the request"))
            for version in model.versions:
                headrace.PipelineConfig.load(model.pipeline(version))
        except ConfigError as error:
            first = error.problems[0]
            raise InputError(f"{first.path or 'the configuration'}: {first.message}") from None
        return model

    def _with(self, override: Message) -> Model:
        message = Message("ModelConfig", self.config.place)
        for source, taken in ((self.config, False), (override, True)):
            for name in source:
                if (name in _SETTABLE and name in override) == taken:
                    for value, place in zip(source.all(name), source.places[name], strict=True):
                        message.add(name, value, place)
        return Model(self.folder, message)


def _says(value: Any) -> bool:
    """Return whether a value is neither a default nor a message of defaults. An empty message chooses something."""
    if isinstance(value, Message):
        return not [*value] or any(_says(inner) for name in value for inner in value.all(name))
    return bool(value) and value not in _DEFAULTS


def _filled(value: Any) -> Any:
    """Return JSON without what is empty."""
    if isinstance(value, dict):
        pairs = ((key, inner) for key, inner in value.items() if inner not in ({}, [], "", None))
        return {key: _filled(inner) for key, inner in pairs}
    return [*map(_filled, value)] if isinstance(value, list) else value


def _is_version(path: Path) -> bool:
    return re.fullmatch("[1-9][0-9]{0,17}", path.name) is not None and path.is_dir()
