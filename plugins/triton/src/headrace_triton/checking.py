"""Checks ensembles against the models beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import among

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    from headrace_triton.pbtxt import Message
    from headrace_triton.reading import Model

__all__ = ["check_ensemble"]


def check_ensemble(model: Model, models: Mapping[str, Model], wrong: Container[str] = ()) -> None:
    """Check that the steps of an ensemble can run: their models, versions and tensors are there, and none waits for itself.

    Args:
        model: The ensemble.
        models: All models that could be read.
        wrong: The names of the others, which have errors of their own.

    Raises:
        ConfigError: They cannot. It has all problems with their places.
    """
    config = model.config
    steps = config.one("ensemble_scheduling").all("step")
    if not steps:
        model.wrong(
            config.at("ensemble_scheduling"), "an ensemble needs `ensemble_scheduling` with steps"
        )
    for step in steps:
        if step.one("model_name") not in wrong:
            _check_step(model, step, models)
    _check_tensors(model, steps)
    model.check()
    there, waiting = {port.one("name") for port in config.all("input")}, [*steps]
    while ready := [waiter for waiter in waiting if there >= {*waiter.table("input_map").values()}]:
        there.update(name for done in ready for name in done.table("output_map").values())
        waiting = [waiter for waiter in waiting if waiter not in ready]
    if waiting:
        names = ", ".join(repr(waiter.one("model_name")) for waiter in waiting)
        model.wrong(waiting[0].place, f"these steps wait for each other in a circle: {names}")
    for step in steps:
        if model.name in _reached(step.one("model_name"), models):
            problem = f"the ensemble calls itself by {step.one('model_name')!r}"
            model.wrong(step.at("model_name"), problem)
    model.check()


def _check_tensors(model: Model, steps: list[Message]) -> None:
    """Check that each tensor that is taken is given once."""
    names = {port.one("name") for port in model.config.all("input")}
    for step in steps:
        for name in step.table("output_map").values():
            if name in names:
                model.wrong(step.at("output_map"), f"the tensor {name!r} is given twice")
            names.add(name)
    for step in steps:
        for index, (key, name) in enumerate(step.all("input_map")):
            if name not in names:
                problem = f"nothing gives the tensor {name!r}, which is the input {key!r} of {step.one('model_name')!r}"
                model.wrong(step.at("input_map", index), problem, among(name, names))
    for port in model.config.all("output"):
        if port.one("name") not in names:
            problem = f"nothing gives the output {port.one('name')!r}"
            model.wrong(port.at("name"), problem, among(port.one("name"), names))


def _check_step(model: Model, step: Message, models: Mapping[str, Model]) -> None:
    name, version = step.one("model_name"), step.one("model_version")
    other = models.get(name)
    if other is None:
        problem = f"there is no model {name!r}"
        model.wrong(step.at("model_name"), problem, among(name, models))
        return
    if version != -1 and version not in other.versions:
        served = ", ".join(map(str, sorted(other.versions)))
        problem = f"version {version} of model {name!r} is not served"
        hint = f"It serves: {served}. -1 is the latest one."
        model.wrong(step.at("model_version"), problem, hint)
    if other.rows < model.rows and other.config.all("input"):
        problem = f"the ensemble takes {model.rows} rows, and its model {name!r} {other.rows}"
        model.wrong(step.at("model_name"), problem, "Lower `max_batch_size` of the ensemble.")
    for side in ("input", "output"):
        ports = {port.one("name"): port for port in other.config.all(side)}
        mapped = step.table(f"{side}_map")
        for index, key in enumerate([key for key, _ in step.all(f"{side}_map")] if ports else ()):
            if key not in ports:
                problem = f"model {name!r} has no {side} {key!r}"
                model.wrong(step.at(f"{side}_map", index), problem, among(key, ports))
        for key, port in ports.items() if side == "input" else ():
            if key not in mapped and not port.one("optional"):
                problem = f"the step gives model {name!r} no input {key!r}"
                model.wrong(step.at("input_map"), problem)


def _reached(name: str, models: Mapping[str, Model]) -> set[str]:
    """Return the models that a model calls as an ensemble, and itself."""
    reached, todo = set[str](), [name]
    while todo:
        called = todo.pop()
        if called not in reached and called in models:
            reached.add(called)
            todo += models[called].called()
    return reached
