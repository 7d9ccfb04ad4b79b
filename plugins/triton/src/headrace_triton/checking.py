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
    for step in [one for one in steps if one.one("model_name") not in wrong]:
        _check_step(model, step, models)
    _check_tensors(model, steps)
    model.check()
    there, waiting = {one.one("name") for one in config.all("input")}, [*steps]
    while ready := [one for one in waiting if there >= {*one.table("input_map").values()}]:
        there.update(name for one in ready for name in one.table("output_map").values())
        waiting = [one for one in waiting if one not in ready]
    if waiting:
        names = ", ".join(repr(one.one("model_name")) for one in waiting)
        model.wrong(waiting[0].place, f"these steps wait for each other in a circle: {names}")
    for step in steps:
        if model.name in _reached(step.one("model_name"), models):
            what = f"the ensemble calls itself by {step.one('model_name')!r}"
            model.wrong(step.at("model_name"), what)
    model.check()


def _check_tensors(model: Model, steps: list[Message]) -> None:
    """Check that each tensor that is taken is given once."""
    given = {one.one("name") for one in model.config.all("input")}
    for step in steps:
        for name in step.table("output_map").values():
            if name in given:
                model.wrong(step.at("output_map"), f"the tensor {name!r} is given twice")
            given.add(name)
    for step in steps:
        for index, (key, name) in enumerate(step.all("input_map")):
            if name not in given:
                what = f"nothing gives the tensor {name!r}, which is the input {key!r} of {step.one('model_name')!r}"
                model.wrong(step.at("input_map", index), what, among(name, given))
    for one in model.config.all("output"):
        if one.one("name") not in given:
            what = f"nothing gives the output {one.one('name')!r}"
            model.wrong(one.at("name"), what, among(one.one("name"), given))


def _check_step(model: Model, step: Message, models: Mapping[str, Model]) -> None:
    name, version = step.one("model_name"), step.one("model_version")
    other = models.get(name)
    if other is None:
        what = f"there is no model {name!r}"
        model.wrong(step.at("model_name"), what, among(name, models))
        return
    if version != -1 and version not in other.versions:
        served = ", ".join(map(str, sorted(other.versions)))
        what = f"version {version} of model {name!r} is not served"
        model.wrong(step.at("model_version"), what, f"It serves: {served}. -1 is the latest one.")
    if other.rows < model.rows and other.config.all("input"):
        what = f"the ensemble takes {model.rows} rows, and its model {name!r} {other.rows}"
        model.wrong(step.at("model_name"), what, "Lower `max_batch_size` of the ensemble.")
    for side in ("input", "output"):
        ports = {one.one("name"): one for one in other.config.all(side)}
        mapped = step.table(f"{side}_map")
        for index, key in enumerate([key for key, _ in step.all(f"{side}_map")] if ports else ()):
            if key not in ports:
                what = f"model {name!r} has no {side} {key!r}"
                model.wrong(step.at(f"{side}_map", index), what, among(key, ports))
        for key, one in ports.items() if side == "input" else ():
            if key not in mapped and not one.one("optional"):
                what = f"the step gives model {name!r} no input {key!r}"
                model.wrong(step.at("input_map"), what)


def _reached(name: str, models: Mapping[str, Model]) -> set[str]:
    """Return the models that a model calls as an ensemble, and itself."""
    found, todo = set[str](), [name]
    while todo:
        one = todo.pop()
        if one not in found and one in models:
            found.add(one)
            todo += models[one].called()
    return found
