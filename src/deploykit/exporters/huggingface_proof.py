"""The proof of a Hugging Face export: the file against the model in PyTorch, and tokens chosen one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deploykit.comparison import compare
from deploykit.data import Sample
from deploykit.errors import DataError, VendorError
from deploykit.exporters.huggingface_inputs import BATCH, PAST, SEQUENCE, past_name, present_name
from deploykit.exporters.huggingface_model import cache_parameter, load
from deploykit.exporters.proof import SourceSide, not_compared
from deploykit.exporters.sample_file import read_arrays
from deploykit.graph.stochastic import stochastic_nodes
from deploykit.parity import TOLERANCES
from deploykit.progress import OnProgress, silent
from deploykit.reference import Reference
from deploykit.report import Finding, failure, note, warning

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deploykit.exporters.huggingface_model import Pretrained
    from deploykit.exporters.request import HuggingfaceRequest
    from deploykit.runtime import Feeds, Outputs

_PROMPT = 5
_TOKENS = 6


def prove_job(request: HuggingfaceRequest, model: str, on_progress: OnProgress = silent) -> dict[str, Any]:
    """Compares an exported file with the folder's model; JSON as `comparison.compare` returns, with "proven" sizes.

    Every dynamic dimension is at its minimum, its maximum and between, the cache empty too; every second sample has
    hidden positions. Models with a cache also continue a text, token by token, as the source does (DK683).
    """
    pretrained = load(request)
    path = Path(model)
    random = stochastic_nodes(path)
    if random:
        text = f"the model is random in {', '.join(random[:4])}: its outputs were not compared"
        return not_compared(warning("DK404", text))
    seen: dict[str, set[int]] = {name: set() for name in pretrained.inputs.ranges}
    source = SourceSide(pretrained.run, "the model")
    reference = Reference(path)
    taken = {spec.name for spec in reference.inputs}

    def candidate(feeds: Feeds) -> Outputs:
        for name, size in pretrained.inputs.sizes(feeds).items():
            seen[name].add(size)
        return reference.predict({name: array for name, array in feeds.items() if name in taken})

    points = pretrained.inputs.points()
    findings = _bounded(pretrained)
    try:
        result = compare(
            source.predict,
            candidate,
            source.accepted(*_sample_file(pretrained, request), _samples(pretrained, request["seed"], points)),
            tolerance=TOLERANCES["fp32"],
            total=len(points),
            on_progress=on_progress,
        )
        proven = {name: sorted(sizes) for name, sizes in seen.items()}
        if pretrained.task.past:
            findings += _continuation(pretrained, candidate, request["seed"])
    except VendorError as problem:
        text = f"the exported file refuses an input that the model takes: {problem.message[:300]}"
        return not_compared(failure("DK625", text, hint="a size was frozen in the file: bound it with --dim"))
    finally:
        reference.close()
    engines = {"reference": "transformers on PyTorch, eager", "candidate": "onnxruntime, graph optimisation off"}
    said = [*(finding.as_dict() for finding in (*source.refused, *findings)), *result["findings"]]
    return {**result, "engines": engines, "proven": proven, "findings": said}


def _samples(pretrained: Pretrained, seed: int, points: list[dict[str, int]]) -> Iterator[Sample]:
    for index, sizes in enumerate(points or [{}, {}, {}]):
        feeds = pretrained.inputs.feeds(sizes, (seed, index), padded=index % 2 == 1)
        shown = ", ".join(f"{name} {size}" for name, size in sizes.items())
        yield Sample(dict(feeds), None, shown or f"sample {index}")


def _sample_file(pretrained: Pretrained, request: HuggingfaceRequest) -> list[Sample]:
    """The user's own feed.

    Raises DataError (DK622) when it is not one array for each input.
    """
    if not request["sample"]:
        return []
    feeds = read_arrays(request["sample"])
    names = [spec.name for spec in pretrained.inputs.specs]
    wrong = sorted(set(names) ^ set(feeds))
    if wrong:
        raise DataError(
            f"the sample and the model differ in the input {wrong[0]!r}",
            code="DK622",
            file=request["sample"],
            hint=f"inputs: {', '.join(names)}",
        )
    return [Sample(feeds, None, "the sample")]


def _bounded(pretrained: Pretrained) -> list[Finding]:
    """Says up to which length the proof goes, where the model takes longer sequences."""
    limit, bounds = pretrained.inputs.limit, pretrained.inputs.ranges.get(SEQUENCE)
    if bounds is None or bounds.maximum is None or (limit is not None and bounds.maximum >= limit):
        return []
    longest = f"sequences up to {limit}" if limit else "longer ones"
    text = f"compared at {SEQUENCE} {bounds.minimum} to {bounds.maximum}; the model takes {longest}"
    return [note("DK682", text, hint=f"--dim {SEQUENCE}=MIN..MAX proves another range")]


def _continuation(pretrained: Pretrained, candidate: Any, seed: int) -> list[Finding]:
    """Greedy decoding from one prompt by the file with its cache, and by the source with its own."""
    inputs = pretrained.inputs
    if {BATCH, SEQUENCE, PAST} - set(inputs.ranges):
        return [note("DK682", "sizes are fixed, so no text was continued token by token")]
    room = (inputs.limit or _PROMPT + _TOKENS) - _TOKENS
    prompt = inputs.feeds({BATCH: 1, SEQUENCE: max(1, min(_PROMPT, room)), PAST: 0}, (seed, 0))
    ours = _greedy(pretrained, candidate, prompt)
    theirs = _source_greedy(pretrained, prompt["input_ids"])
    if ours != theirs:
        text = f"greedy decoding differs: the model continues with {theirs}, the file with {ours}"
        return [failure("DK683", text, hint="--task text-generation exports the model without a cache")]
    return [note("DK683", f"{len(ours)} tokens chosen one after the other are the source's")]


def _greedy(pretrained: Pretrained, candidate: Any, prompt: Feeds) -> list[int]:
    feeds, found = dict(prompt), list[int]()
    length = feeds["input_ids"].shape[1]
    for _ in range(_TOKENS):
        made = candidate(feeds)
        found.append(int(made["logits"][0, -1].argmax()))
        length += 1
        feeds["input_ids"] = np.array([[found[-1]]], feeds["input_ids"].dtype)
        if "attention_mask" in feeds:
            feeds["attention_mask"] = np.ones((1, length), feeds["attention_mask"].dtype)
        if "position_ids" in feeds:
            feeds["position_ids"] = np.array([[length - 1]], feeds["position_ids"].dtype)
        for n in range(pretrained.flat.layers):
            for part in ("key", "value"):
                feeds[past_name(n, part)] = made[present_name(n, part)]
    return found


def _source_greedy(pretrained: Pretrained, prompt: Any) -> list[int]:
    """The model as its users call it, with the cache that it makes itself."""
    tokens, cache, name = torch.from_numpy(prompt), None, cache_parameter(pretrained.flat.model)
    found: list[int] = []
    with torch.no_grad():
        for _ in range(_TOKENS):
            made = pretrained.flat.model(input_ids=tokens, use_cache=True, return_dict=True, **{name: cache})
            cache = made[name]
            found.append(int(made.logits[0, -1].argmax()))
            tokens = torch.tensor([[found[-1]]])
    return found
