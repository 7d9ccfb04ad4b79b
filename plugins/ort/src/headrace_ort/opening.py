"""Opens the session of an instance as its options say, or takes the one that the node's instances share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import SetupError
from headrace_ort import builds, providers, session
from headrace_ort.model_file import WeightFiles, read_facts, warning_of_batch_dependence
from headrace_ort.options import ON_CUDA

if TYPE_CHECKING:
    import headrace
    from headrace_ort.on_device import Place
    from headrace_ort.options import OnnxOptions
    from headrace_tensors import Signature

__all__ = ["Opened", "choose_row_sizes", "open_session"]

_PLANNED: Final = frozenset({"Conv", "ConvTranspose"})
"""Operators of which the CUDA provider keeps a single plan, for the shape of the run before."""


class Opened(NamedTuple):
    """An open session.

    Attributes:
        session: The ``onnxruntime.InferenceSession``.
        log_level: The level of the logs of its runs.
        place: Its place on a CUDA device. None: it computes elsewhere.
        weights: The files with weights that it maps. None: there are none.
        planned: Whether it plans operators anew for a run of another shape.
        about: What `describe` gives of how it was opened.
    """

    session: Any
    log_level: str
    place: Place | None
    weights: WeightFiles | None
    planned: bool
    about: dict[str, Any]


def open_session(options: OnnxOptions, context: headrace.InitContext) -> Opened:
    """Open the session, or take the one that the instances share.

    Raises:
        SetupError: The model cannot be loaded or run on the providers.
    """
    chosen = _choose(options, context)
    place: Place | None = None
    current: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    on_cpu = [name for name, _ in chosen] == [providers.CPU]
    threads = options.intra_op_threads or context.threads
    share = options.share_weights
    if share is None:
        share = on_cpu and threads == 1
    log_level = options.log_level or ("fatal" if on_cpu else "error")
    if chosen[0][0] in ON_CUDA:
        from headrace_ort.on_device import place_of

        place = place_of(context, chosen, shared=share, cuda_graph=options.cuda_graph)
        if place is not None:
            chosen, current = place.providers, place.current()

    def make() -> Any:
        return session.make_session(
            options.model,
            chosen,
            intra_op_threads=threads,
            spinning=options.spin,
            arena=options.arena,
            custom_ops=options.custom_ops,
            graph_optimization=options.graph_optimization,
            session_config=options.session_config,
            log_level=log_level,
        )

    if share:
        file = options.model.stat()
        key = ("headrace_ort", str(options.model.resolve()), file.st_mtime_ns, file.st_size)
        how = (
            chosen,
            threads,
            options.spin,
            options.arena,
            options.graph_optimization,
            log_level,
        )
        more = (sorted(options.session_config.items()), options.custom_ops)
        named = (*key, repr(how), repr(more))
    facts, weights = read_facts(options.model), None
    if facts.locations:
        weights = WeightFiles(options.model, facts.locations)
    try:
        with current:
            opened = context.store.node.get_or_create(named, make) if share else make()
    except BaseException:
        if weights is not None:
            weights.close()
        raise
    warning = warning_of_batch_dependence(options.model, facts.operators)
    if warning is not None and context.batch.max != 1 and context.instance_index == 0:
        context.logger.warning("%s", warning)
    planned = chosen[0][0] == ON_CUDA[0] and not _PLANNED.isdisjoint(facts.operators)
    about = {
        "provider_options": {
            name: {key: value for key, value in values.items() if key != "user_compute_stream"}
            for name, values in chosen
        },
        "intra_op_threads": threads,
        "spinning": options.session_config.get(session.SPINNING, str(int(options.spin))) == "1",
        "shared_session": share,
    }
    return Opened(opened, log_level, place, weights, planned, about)


def choose_row_sizes(
    options: OnnxOptions, context: headrace.InitContext, signature: Signature, *, planned: bool
) -> tuple[int, ...]:
    """Return the numbers of rows with which a model runs: `row_sizes`, by default 1, 2, 4, ... `max` where that helps.

    Where it would help and cannot be had, the node's first instance warns.

    Args:
        options: The options.
        context: The context of the instance.
        signature: Inputs and outputs of the model.
        planned: Whether the session plans operators anew for a run of another shape.
    """
    batch = context.batch
    alike = options.cuda_graph or batch.sizes or signature.rows or (batch.max or 1) == 1
    if options.row_sizes is not None or not planned or alike or not signature.fills:
        return options.row_sizes or ()
    ports = (*signature.inputs, *signature.outputs)
    lengths = [n for port in signature.inputs if not port.optional for n in port.sample_shape]
    known = None not in lengths or options.warm_up_input is not None
    if known and not any(port.axis for port in ports):
        from headrace_ort.on_device import sizes_to_capture

        return tuple(sizes_to_capture(None, batch.max))
    if context.instance_index == 0:
        context.logger.warning(
            "the CUDA provider plans convolutions anew whenever a run has another number of rows, which takes longer than"
            " many runs: row_sizes = [%d] keeps the number",
            batch.max,
        )
    return ()


def _choose(
    options: OnnxOptions, context: headrace.InitContext
) -> list[tuple[str, dict[str, str]]]:
    """Give the providers with their options; refuse two builds of ONNX Runtime, or warn about them."""
    if options.custom_ops and not context.allow_import:
        raise SetupError(
            "custom_ops bring in code, and imports are refused here",
            hint="Load the configuration with imports allowed.",
        )
    chosen = providers.choose_providers(
        options.providers,
        context.device,
        options.provider_options,
    )
    twice = builds.two_builds()
    if twice is not None:
        if any(name != providers.CPU for name, _ in chosen):
            raise twice
        context.logger.warning("%s. %s", twice.what, twice.hint)
    return chosen
