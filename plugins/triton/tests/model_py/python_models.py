"""Models for Triton's Python backend, written for these tests, and what builds them."""

from __future__ import annotations

import json

from headrace_models import Models

FLOATS = {"data_type": "TYPE_FP32", "dims": [4]}
NUMBER = {"data_type": "TYPE_INT32", "dims": [1]}
HEAD = """
import asyncio, json, os, signal, threading, time
import numpy as np
import triton_python_backend_utils as pb_utils
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def number(value, name="OUT", dtype=np.int32):
    return pb_utils.Tensor(name, np.array(value, dtype))


def answer(*tensors):
    return pb_utils.InferenceResponse([*tensors])

"""
"""What each model.py begins with."""


def config(name, inputs, outputs, *, most=0, decoupled=False):
    """Return a configuration as Triton prints it."""
    return {
        "name": name,
        "max_batch_size": most,
        "input": [{"name": one, **port} for one, port in inputs.items()],
        "output": [{"name": one, **port} for one, port in outputs.items()],
        "model_transaction_policy": {"decoupled": decoupled},
    }


def write(folder, name, code, version=1):
    """Write a model.py; return its path."""
    file = folder / name / str(version) / "model.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code, encoding="utf-8")
    return file


def table(file, about, *, in_process=False, **keys):
    """Return the configuration of a pipeline that runs a model.py."""
    backend = "TritonPython" if in_process else "Process(restart_limit=1000)[TritonPython]"
    main = {"backend": backend, "model": str(file), "config": json.dumps(about), **keys}
    return {"global": {"deadlock_after_s": 0.05}, "main": main}


def build(folder, models, *, in_process=False, preload=True, **keys):
    """Return the models of ``{name: (configuration, code)}``."""
    made = {}
    for name, (about, code) in models.items():
        size = {"max": about["max_batch_size"] or 1}
        made[name] = table(
            write(folder, name, HEAD + code), about, in_process=in_process, **size, **keys
        )
    return Models(made, preload=preload)


ADD_SUB = """
class TritonPythonModel:
    def initialize(self, args):
        about = json.loads(args["model_config"])
        found = [pb_utils.get_output_config_by_name(about, one) for one in ("OUTPUT0", "OUTPUT1")]
        self.kinds = [pb_utils.triton_string_to_numpy(one["data_type"]) for one in found]
        self.args = args

    def execute(self, requests):
        answers = []
        for request in requests:
            a, b = (
                pb_utils.get_input_tensor_by_name(request, one).as_numpy()
                for one in ("INPUT0", "INPUT1")
            )
            outputs = [
                pb_utils.Tensor(name, value.astype(kind))
                for name, value, kind in zip(("OUTPUT0", "OUTPUT1"), (a + b, a - b), self.kinds)
            ]
            answers.append(pb_utils.InferenceResponse(output_tensors=outputs))
        return answers

    def finalize(self):
        pass
"""
ADD_SUB_CONFIG = config(
    "add_sub", {"INPUT0": FLOATS, "INPUT1": FLOATS}, {"OUTPUT0": FLOATS, "OUTPUT1": FLOATS}
)

BLS = """
class TritonPythonModel:
    def execute(self, requests):
        answers = []
        for request in requests:
            (wanted,) = pb_utils.get_input_tensor_by_name(request, "MODEL_NAME").as_numpy()
            call = pb_utils.InferenceRequest(
                model_name=wanted.decode(),
                requested_output_names=["OUTPUT0", "OUTPUT1"],
                inputs=[pb_utils.get_input_tensor_by_name(request, one) for one in ("INPUT0", "INPUT1")],
            )
            answer = call.exec()
            if answer.has_error():
                raise pb_utils.TritonModelException(answer.error().message())
            answers.append(pb_utils.InferenceResponse(output_tensors=answer.output_tensors()))
        return answers
"""
BLS_ASYNC = """
class TritonPythonModel:
    async def execute(self, requests):
        answers = []
        for request in requests:
            calls = [
                pb_utils.InferenceRequest(
                    model_name="add_sub",
                    requested_output_names=[one],
                    inputs=request.inputs()[:2],
                ).async_exec()
                for one in ("OUTPUT0", "OUTPUT1")
            ]
            found = await asyncio.gather(*calls)
            tensors = [one.output_tensors()[0] for one in found]
            answers.append(pb_utils.InferenceResponse(tensors))
        return answers
"""
TEXT = {"data_type": "TYPE_STRING", "dims": [1]}
BLS_CONFIG = {
    **ADD_SUB_CONFIG,
    "name": "bls",
    "input": [*ADD_SUB_CONFIG["input"], {"name": "MODEL_NAME", **TEXT, "optional": True}],
}

SQUARE = """
class TritonPythonModel:
    def initialize(self, args):
        self.threads = []

    def execute(self, requests):
        for request in requests:
            number = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            thread = threading.Thread(target=self.send, args=(sender, number))
            self.threads.append(thread)
            thread.start()
        return None

    def send(self, sender, number):
        for _ in range(number[0]):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", number)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self):
        for one in self.threads:
            one.join()
"""
SQUARE_CONFIG = config("square", {"IN": NUMBER}, {"OUT": NUMBER}, decoupled=True)

SUM = """
class TritonPythonModel:
    {head} execute(self, requests):
        answers = []
        for request in requests:
            calls = [
                pb_utils.InferenceRequest(
                    model_name="square", requested_output_names=["OUT"], inputs=request.inputs()
                )
                for _ in range(2)
            ]
            found = {call}
            total = np.zeros(1, np.int32)
            for responses in found:
                for one in responses:
                    if one.output_tensors():  # a last response may have none
                        total += pb_utils.get_output_tensor_by_name(one, "OUT").as_numpy()
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("SUM", total)]))
        return answers
"""
SUM_SYNC = SUM.format(head="def", call="[one.exec(decoupled=True) for one in calls]")
SUM_ASYNC = SUM.format(
    head="async def",
    call="await asyncio.gather(*(one.async_exec(decoupled=True) for one in calls))",
)
SUM_CONFIG = config("sum", {"IN": NUMBER}, {"SUM": NUMBER})
