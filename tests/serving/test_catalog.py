"""Repositories whose models come, change and go while the server runs."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import pytest

from deploykit.serving.catalog import Catalog, catalog_of
from deploykit.serving.dataplane import DataPlane, InferRequest
from deploykit.serving.errors import ForbiddenError, LoadError, UnknownModelError
from deploykit.serving.model import Model, State
from deploykit.serving.repository import entries_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path


def put(root: Path, name: str, version: int, times: float, *, config: str | None = None) -> Path:
    """A model that multiplies; written beside and moved, as a careful deployment does."""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[N, 2] x) => (float[N, 2] y)
        <float k = {{{times}}}> {{ y = Mul(x, k) }}"""
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(onnx.parser.parse_model(text), folder / "new")
    (folder / "new").replace(folder / "model.onnx")
    if config is not None:
        (root / name / "config.pbtxt").write_text(config)
    return folder


async def ask(plane: DataPlane, name: str, version: str = "") -> float:
    model = plane.model(name, version)
    result = await plane.infer(model, InferRequest({"x": np.ones((1, 2), np.float32)}))
    return float(result.outputs["y"][0, 0])


def run(root: Path, scenario: Callable[[DataPlane, Catalog], Awaitable[None]], *, control: bool = True) -> None:
    """A scenario on what the repository has at its begin."""

    async def main() -> None:
        def make(entry: Any) -> Model:
            return Model(entry.path, name=entry.name, version=entry.version, config=entry.config, cpus=1)

        entries = entries_of(root)
        models = [make(entry) for entry in entries]
        for model in models:
            model.load()
        plane = DataPlane(models)
        plane.catalog = Catalog(plane, root, make, control=control)
        for entry in entries:
            plane.catalog.adopt(entry)
        try:
            await scenario(plane, plane.catalog)
        finally:
            plane.close()

    asyncio.run(main())


async def settle(catalog: Catalog) -> None:
    """What has changed is loaded at the second look, when it has not changed since the first."""
    await catalog.refresh()
    await catalog.refresh()


def test_a_new_version_takes_over_and_the_old_one_leaves(tmp_path: Path) -> None:
    put(tmp_path, "a", 1, 2)
    put(tmp_path, "b", 1, 5)

    async def scenario(plane: DataPlane, catalog: Catalog) -> None:
        old = plane.model("a")
        put(tmp_path, "a", 2, 3)
        await catalog.refresh()
        assert await ask(plane, "a") == 2  # it may still be written
        await catalog.refresh()
        assert (await ask(plane, "a"), await ask(plane, "b")) == (3, 5)
        assert plane.versions("a") == ["2"]
        async with asyncio.timeout(5):
            while old.state is not State.CLOSED:
                await asyncio.sleep(0.01)

    run(tmp_path, scenario)


@pytest.mark.parametrize("broken", ["truncated", "another rank", "no model"])
def test_a_bad_new_version_does_not_take_the_old_one_down(tmp_path: Path, broken: str) -> None:
    config = 'input { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } max_batch_size: 4'
    put(tmp_path, "a", 1, 2, config=config)

    async def scenario(plane: DataPlane, catalog: Catalog) -> None:
        folder = put(tmp_path, "a", 2, 3)
        if broken == "truncated":
            (folder / "model.onnx").write_bytes((folder / "model.onnx").read_bytes()[:40])
        elif broken == "no model":
            (folder / "model.onnx").write_text("hello")
        else:
            text = '<ir_version: 8, opset_import: ["": 17]> g (float[N, 2, 2] x) => (float[N, 2, 2] y) { y = Relu(x) }'
            onnx.save(onnx.parser.parse_model(text), folder / "model.onnx")
        await settle(catalog)
        assert await ask(plane, "a") == 2
        assert plane.ready
        rows = {row.version: row for row in await catalog.index(ready=False)}
        assert (rows["1"].state, rows["2"].state) == ("READY", "UNAVAILABLE")
        assert rows["2"].reason
        with pytest.raises(LoadError, match="version 2 cannot be loaded"):
            await catalog.load("a")
        assert await ask(plane, "a") == 2
        put(tmp_path, "a", 2, 7)  # repaired
        await settle(catalog)
        assert await ask(plane, "a") == 7

    run(tmp_path, scenario)


def test_changed_files_of_the_same_version_are_loaded_and_a_removed_model_goes(tmp_path: Path) -> None:
    put(tmp_path, "a", 1, 2)
    put(tmp_path, "b", 1, 5)

    async def scenario(plane: DataPlane, catalog: Catalog) -> None:
        put(tmp_path, "a", 1, 4)
        await settle(catalog)
        assert await ask(plane, "a") == 4
        shutil.rmtree(tmp_path / "b")
        await settle(catalog)
        with pytest.raises(UnknownModelError, match="there is no model 'b'; this server has 'a'"):
            plane.model("b")

    run(tmp_path, scenario)


def test_requests_that_have_the_old_model_are_answered_by_it(tmp_path: Path) -> None:
    put(tmp_path, "a", 1, 2)

    async def scenario(plane: DataPlane, catalog: Catalog) -> None:
        old = plane.model("a")
        with old.in_use():  # its body is still on the way
            put(tmp_path, "a", 2, 3)
            await settle(catalog)
            assert await ask(plane, "a") == 3
            await asyncio.sleep(0.1)
            result = await plane.infer(old, InferRequest({"x": np.ones((1, 2), np.float32)}))
            assert float(result.outputs["y"][0, 0]) == 2

    run(tmp_path, scenario)


def test_loading_and_unloading_on_request(tmp_path: Path) -> None:
    put(tmp_path, "a", 1, 2, config="version_policy { all { } }")
    put(tmp_path, "a", 2, 3)

    async def scenario(plane: DataPlane, catalog: Catalog) -> None:
        assert plane.versions("a") == ["1", "2"]
        await catalog.unload("a")
        with pytest.raises(UnknownModelError):
            plane.model("a")
        await settle(catalog)  # it stays out
        assert [row.state for row in await catalog.index(ready=False)] == ["UNAVAILABLE"] * 2
        await catalog.load("a")
        assert (await ask(plane, "a", "1"), await ask(plane, "a")) == (2, 3)
        assert [row.state for row in await catalog.index(ready=True)] == ["READY"] * 2
        with pytest.raises(UnknownModelError, match="no model 'c'"):
            await catalog.load("c")

    run(tmp_path, scenario)


def test_clients_may_do_nothing_of_that_unless_asked(tmp_path: Path) -> None:
    put(tmp_path, "a", 1, 2)

    async def scenario(plane: DataPlane, catalog: Catalog) -> None:
        for call in (catalog.load("a"), catalog.unload("a"), catalog.index(ready=False)):
            with pytest.raises(ForbiddenError, match="does not let clients"):
                await call
        assert await ask(plane, "a") == 2

    run(tmp_path, scenario, control=False)
    with pytest.raises(ForbiddenError, match="no repository"):
        catalog_of(DataPlane([]))


def test_a_real_server_exchanges_versions_without_losing_a_request(tmp_path: Path, start: Callable[..., Any]) -> None:
    triton = pytest.importorskip("tritonclient.http")
    put(tmp_path, "a", 1, 1)
    put(tmp_path, "b", 1, 50)
    server = start(tmp_path, "--reload", 0.1, "--repository-control")
    assert server.ready_line["models"] == ["a", "b"]
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 1]}
    answers: list[tuple[int, float]] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            got = server.call("POST", "/v2/models/a/infer", {"inputs": [tensor]})
            answers.append((got.status, got.json["outputs"][0]["data"][0] if got.status == 200 else 0.0))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for version in (2, 3):
        put(tmp_path, "a", version, version)
        until = time.monotonic() + 30
        while answers[-1:] != [(200, float(version))]:
            assert time.monotonic() < until
            time.sleep(0.02)
    (tmp_path / "a" / "4").mkdir()
    (tmp_path / "a" / "4" / "model.onnx").write_bytes(b"broken")
    time.sleep(0.6)
    stop.set()
    for thread in threads:
        thread.join()
    assert {status for status, _ in answers} == {200}
    assert {value for _, value in answers} == {1.0, 2.0, 3.0}
    assert any(line["event"] == "not loaded" and line["version"] == "4" for line in server.log())
    client = triton.InferenceServerClient(f"127.0.0.1:{server.port}")
    rows = {(row["name"], row["version"]): row["state"] for row in client.get_model_repository_index()}
    assert rows["a", "3"] == rows["b", "1"] == "READY"
    assert rows["a", "4"] == "UNAVAILABLE"
    client.unload_model("b")
    assert server.call("POST", "/v2/models/b/infer", {"inputs": [tensor]}).status == 404
    client.load_model("b")
    assert server.call("POST", "/v2/models/b/infer", {"inputs": [tensor]}).json["outputs"][0]["data"] == [50, 50]
    assert server.stop() == 0


def test_a_configuration_that_cannot_be_read_concerns_its_own_model(tmp_path: Path) -> None:
    put(tmp_path, "a", 1, 2)
    put(tmp_path, "b", 1, 5)

    async def scenario(plane: DataPlane, catalog: Catalog) -> None:
        (tmp_path / "a" / "config.pbtxt").write_text("nonsense {{{")
        put(tmp_path, "b", 2, 6)
        await settle(catalog)
        assert (await ask(plane, "a"), await ask(plane, "b")) == (2, 6)
        await catalog.load("b")
        with pytest.raises(LoadError, match="no model configuration"):
            await catalog.load("a")
        assert [row.version for row in await catalog.index(ready=True) if row.name == "a"] == ["1"]
        tmp_path.rename(tmp_path.with_name("away"))
        for call in (catalog.load("b"), catalog.index(ready=False)):
            with pytest.raises(LoadError, match="repository cannot be read"):
                await call
        assert await ask(plane, "b") == 6

    run(tmp_path, scenario)


def test_whatever_a_load_or_a_look_raises_the_watch_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "a", 1, 2)

    async def scenario(plane: DataPlane, catalog: Catalog) -> None:
        load, entries, bad = Model.load, catalog._entries, [True]
        monkeypatch.setattr(Model, "load", lambda self: load(self) if not bad.pop() else 1 / 0)
        bad[:] = [False, True]
        monkeypatch.setattr(catalog, "_entries", lambda *_: monkeypatch.setattr(catalog, "_entries", entries) or 1 / 0)
        watching = asyncio.create_task(catalog.watch(0.02))
        put(tmp_path, "a", 2, 3)  # its load fails with what is no error of ours
        async with asyncio.timeout(20):
            while ("a", "2") not in catalog._problems:
                await asyncio.sleep(0.01)
            assert "ZeroDivisionError" in catalog._problems["a", "2"][1]
            assert await ask(plane, "a") == 2
            put(tmp_path, "a", 3, 4)
            while plane.versions("a") != ["3"]:
                await asyncio.sleep(0.01)
        watching.cancel()

    run(tmp_path, scenario)


def test_a_stop_does_not_wait_for_a_version_that_loads(
    tmp_path: Path, start: Callable[..., Any], loop_text: str
) -> None:
    put(tmp_path, "a", 1, 2)
    server = start(tmp_path, "--reload", 0.1, "--no-grpc")
    endless = loop_text.replace("(int64 trips, float[n] x)", "(float[n] x)").replace(
        "{1}>", "{1}, int64 trips = {9000000000}>"
    )
    (tmp_path / "a" / "2").mkdir()
    onnx.save(onnx.parser.parse_model(endless), tmp_path / "a" / "2" / "model.onnx")
    time.sleep(1.0)
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 1]}
    assert server.call("POST", "/v2/models/a/infer", {"inputs": [tensor]}).json["model_version"] == "1"
    assert server.stop() == 0
