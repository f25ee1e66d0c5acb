"""Where nodes run: on this engine's own providers, and as another one's answer says it."""

from types import SimpleNamespace

import onnxruntime as ort
import pytest

from deploykit.converters.onnxruntime.placement import judge_placement, placed, record
from deploykit.converters.onnxruntime.providers import CPU, Provider
from deploykit.converters.onnxruntime.runtime import load
from deploykit.errors import GateError
from deploykit.runtime import RuntimeOptions

OTHER = "OpenVINOExecutionProvider"
PATH = SimpleNamespace(name="model.onnx")


def session(**nodes):
    """Assigned as `get_provider_graph_assignment_info` gives it: parts, of which a provider may have several."""
    parts = [
        SimpleNamespace(
            ep_name=name.replace("Cpu", CPU).replace("Other", OTHER),
            get_nodes=lambda names=names: [SimpleNamespace(name=n, op_type="Add") for n in names],
        )
        for name, names in nodes.items()
    ]
    return SimpleNamespace(get_provider_graph_assignment_info=lambda: [*parts, *parts[:1]])


def test_the_engine_tells_where_each_node_of_its_graph_runs(onnx_file):
    model = onnx_file("agraph (float[N] x) => (float[N] y) { [sin] s = Sin (x) [cos] y = Cos (s) }")
    options = ort.SessionOptions()
    record(options)
    opened = ort.InferenceSession(str(model), options, providers=[CPU])
    assert placed(opened) == {CPU: ["Sin 'sin'", "Cos 'cos'"]}


def test_engine_that_does_not_tell_is_said():
    (said,) = judge_placement(SimpleNamespace(), Provider(OTHER), PATH)
    assert (said.code, said.severity) == ("DK572", "warning")


def test_what_is_left_to_the_cpu_is_counted_and_named():
    (said,) = judge_placement(session(Other=["a", "b"], Cpu=["c"]), Provider(OTHER), PATH)
    assert (said.code, said.severity) == ("DK572", "note")
    assert f"{OTHER} runs 4 nodes" in said.message
    assert f"{CPU} 1: Add 'c'" in said.message
    (said,) = judge_placement(session(Other=["a"]), Provider(OTHER), PATH)
    assert "nothing is left to the CPU" in said.message


def test_falling_back_whole_is_refused_unless_allowed():
    with pytest.raises(GateError, match=r"takes no node of model\.onnx") as caught:
        judge_placement(session(Cpu=["a", "b"]), Provider(OTHER), PATH)
    assert caught.value.code == "DK571"
    assert "openvino:fallback=allow" in caught.value.hint
    assert "Add 'a'" in caught.value.context[0]
    (said,) = judge_placement(session(Cpu=["a"]), Provider(OTHER, fallback=True), PATH)
    assert (said.code, said.severity) == ("DK571", "warning")


def test_model_whose_nodes_are_all_folded_falls_back_nowhere():
    nothing = SimpleNamespace(get_provider_graph_assignment_info=list)
    (said,) = judge_placement(nothing, Provider(OTHER), PATH)
    assert (said.code, said.severity) == ("DK572", "note")


def test_the_cpu_itself_is_nothing_to_tell(onnx_file):
    model = onnx_file("agraph (float[N] x) => (float[N] y) { y = Sin (x) }")
    assert list(load(model, RuntimeOptions(provider="cpu")).findings) == []


@pytest.mark.skipif("AzureExecutionProvider" not in ort.get_available_providers(), reason="no second provider here")
def test_second_provider_of_this_machine_that_takes_nothing_is_refused(onnx_file):
    model = onnx_file("agraph (float[N] x) => (float[N] y) { [sin] y = Sin (x) }")
    with pytest.raises(GateError, match="AzureExecutionProvider takes no node") as caught:
        load(model, RuntimeOptions(provider="azure"))
    assert caught.value.code == "DK571"
    assert [f.code for f in load(model, RuntimeOptions(provider="azure:fallback=allow")).findings] == ["DK571"]
