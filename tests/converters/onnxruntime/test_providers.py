import pytest

from deploykit.converters.onnxruntime.providers import (
    CPU,
    Provider,
    parse_provider,
    provider_for,
    refused_options,
    session_entries,
)
from deploykit.errors import UnavailableError, UsageError
from deploykit.runtime import RuntimeOptions


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("cuda", ("cuda", {}, False)),
        ("openvino:device_type=CPU,threads=2", ("openvino", {"device_type": "CPU", "threads": "2"}, False)),
        ("openvino:fallback=allow", ("openvino", {}, True)),
        ("openvino:fallback=refuse,device_type=GPU", ("openvino", {"device_type": "GPU"}, False)),
        # Commas and colons stand in values, too.
        ("o:device=HETERO:GPU,CPU,cache=/a=b", ("o", {"device": "HETERO:GPU,CPU", "cache": "/a=b"}, False)),
        ("trt:profile=x:1x3,y:2", ("trt", {"profile": "x:1x3,y:2"}, False)),
    ],
)
def test_options_stand_behind_the_name(text, parsed):
    assert parse_provider(text) == parsed


@pytest.mark.parametrize("text", ["", ":a=1", "cuda:", "cuda:fast", "cuda:=1", "cuda:fallback=maybe"])
def test_what_is_no_option_is_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_provider(text)
    assert caught.value.code == "DK527"


def test_cpu_is_meant_where_nothing_is_asked_for_and_has_no_options():
    assert provider_for(RuntimeOptions()) == Provider(CPU)
    assert provider_for(RuntimeOptions(provider="CPUExecutionProvider")) == Provider(CPU)
    with pytest.raises(UsageError, match="has no options"):
        provider_for(RuntimeOptions(provider="cpu:threads=2"))


@pytest.mark.parametrize(
    ("asked", "brings"), [("openvino", "onnxruntime-openvino"), ("qnn:backend=htp", "onnxruntime-qnn")]
)
def test_provider_that_is_not_here_says_what_brings_it(asked, brings):
    with pytest.raises(UnavailableError) as caught:
        provider_for(RuntimeOptions(provider=asked))
    assert caught.value.code == "DK220"
    assert brings in caught.value.hint


def test_the_cpu_stands_behind_every_other_provider():
    assert session_entries(Provider(CPU)) == [CPU]
    assert session_entries(Provider("AExecutionProvider")) == ["AExecutionProvider", CPU]
    assert session_entries(Provider("A", {"k": "v"})) == [("A", {"k": "v"}), CPU]


def test_a_providers_own_words_about_its_options_are_a_usage_error():
    asked = Provider("OpenVINOExecutionProvider", {"bogus": "1"})
    assert refused_options(asked, "Invalid OpenVINO EP option: bogus").code == "DK527"
    assert refused_options(asked, "out of memory") is None
    assert refused_options(Provider("OpenVINOExecutionProvider"), "Invalid option") is None
