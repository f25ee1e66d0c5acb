"""An engine of TensorRT on a GPU: profiles, memory, and one call. For classic TensorRT and TensorRT for RTX.

NumPy only: this file is copied into build bundles, and is imported there as `trt_execution`. The module (`tensorrt` or
`tensorrt_rtx`) and the driver are parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "BF16": "bfloat16",
    "FP8": "float8_e4m3fn",
}


class LoadError(RuntimeError):
    """The runtime does not deserialise the file. log: what it said."""

    def __init__(self, message: str, log: Any = ()) -> None:
        super().__init__(message)
        self.log = tuple(log)


def array_type(kind: Any) -> np.dtype[Any]:
    """NumPy's type of a `DataType`; bfloat16 and float8 need the package ml_dtypes."""
    name = _DTYPES.get(kind.name)
    if name is None:
        message = f"an engine's tensor is {kind.name}, which NumPy does not hold"
        raise LoadError(message)
    if name in ("bfloat16", "float8_e4m3fn"):
        import ml_dtypes

        other: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return other
    return np.dtype(name)


class Session:
    """A deserialised engine with one context."""

    def __init__(self, trt: Any, driver: Any, log: Any, plan: bytes) -> None:
        """Raises LoadError where the runtime refuses the plan."""
        self._trt, self._driver = trt, driver
        driver.activate()
        self._runtime = trt.Runtime(log)
        self._engine = self._runtime.deserialize_cuda_engine(plan)
        if self._engine is None:
            message = "the runtime does not deserialise the engine"
            raise LoadError(message, log.kept.errors())
        self._context = self._engine.create_execution_context()
        if self._context is None:
            message = "the engine gives no execution context: there may be too little GPU memory"
            raise LoadError(message, log.kept.errors())
        self._stream = driver.stream()
        self._memory: dict[str, tuple[int, int]] = {}  # by tensor: where, and how many bytes
        self._profile = 0
        names = [self._engine.get_tensor_name(index) for index in range(self._engine.num_io_tensors)]
        mode = trt.TensorIOMode.INPUT
        self.inputs = [name for name in names if self._engine.get_tensor_mode(name) == mode]
        self.outputs = [name for name in names if name not in self.inputs]

    def dtype(self, name: str) -> np.dtype[Any]:
        """Of a tensor of the interface."""
        return array_type(self._engine.get_tensor_dtype(name))

    def shape(self, name: str) -> tuple[int, ...]:
        """As the engine declares it; -1 where it varies."""
        return tuple(self._engine.get_tensor_shape(name))

    def profile_for(self, shapes: dict[str, tuple[int, ...]]) -> int:
        """The first profile that takes the shapes. Raises ValueError with what all of them take."""
        told = []
        for number in range(max(1, self._engine.num_optimization_profiles)):
            outside = [name for name, shape in shapes.items() if not self._fits(name, number, shape)]
            if not outside:
                return number
            low, _, high = self._engine.get_tensor_profile_shape(outside[0], number)
            told.append(f"{outside[0]} {tuple(low)} to {tuple(high)}")
        given = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        message = f"no profile of the engine takes {given}; they take {' or '.join(told)}"
        raise ValueError(message)

    def _fits(self, name: str, number: int, shape: tuple[int, ...]) -> bool:
        declared = self.shape(name)
        if -1 not in declared:
            return declared == tuple(shape)
        low, _, high = self._engine.get_tensor_profile_shape(name, number)
        return len(low) == len(shape) and all(a <= n <= b for a, n, b in zip(low, shape, high))  # noqa: B905

    def run(self, feeds: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Outputs by name. feeds: by input name, in the engine's types and in shapes that a profile takes."""
        arrays = {name: np.ascontiguousarray(feeds[name], self.dtype(name)) for name in self.inputs}
        wanted = self.profile_for({name: tuple(array.shape) for name, array in arrays.items()})
        if wanted != self._profile:
            self._context.set_optimization_profile_async(wanted, self._stream)
            self._driver.wait(self._stream)
            self._profile = wanted
        for name, array in arrays.items():
            self._context.set_input_shape(name, tuple(array.shape))
            place = self._room(name, array.nbytes)
            self._driver.to_device(place, array.ctypes.data, array.nbytes)
            self._context.set_tensor_address(name, place)
        made = {name: self._await(name) for name in self.outputs}
        if not self._context.execute_async_v3(self._stream):
            message = "the engine's call failed"
            raise LoadError(message)
        self._driver.wait(self._stream)
        return {name: self._fetched(name, made[name]) for name in self.outputs}

    def _room(self, name: str, size: int) -> int:
        """Memory for a tensor, kept from call to call."""
        place, held = self._memory.get(name, (0, -1))
        if held < size:
            if held >= 0:
                self._driver.free(place)
            self._memory[name] = (self._driver.allocate(size), size)
        return self._memory[name][0]

    def _await(self, name: str) -> list[tuple[int, ...]]:
        """Has the context ask for an output's memory when it knows its size; its shape is in the list afterwards."""
        shapes: list[tuple[int, ...]] = []
        room = self._room

        class Allocator(self._trt.IOutputAllocator):  # type: ignore[misc,name-defined]
            def reallocate_output(self, tensor: str, memory: int, size: int, alignment: int) -> int:
                return room(tensor, size)

            def reallocate_output_async(self, tensor: str, memory: int, size: int, alignment: int, stream: int) -> int:
                return room(tensor, size)

            def notify_shape(self, tensor: str, shape: Any) -> None:
                shapes.append(tuple(shape))

        allocator = Allocator()
        self._allocators = {**getattr(self, "_allocators", {}), name: allocator}  # the context does not keep it
        self._context.set_output_allocator(name, allocator)
        return shapes

    def _fetched(self, name: str, shapes: list[tuple[int, ...]]) -> np.ndarray[Any, Any]:
        shape = shapes[-1] if shapes else tuple(self._context.get_tensor_shape(name))
        array = np.empty(shape, self.dtype(name))
        if array.nbytes:
            self._driver.to_host(array.ctypes.data, self._memory[name][0], array.nbytes)
        return array

    def close(self) -> None:
        """Frees the GPU's memory."""
        del self._context, self._engine, self._runtime
        for place, _ in self._memory.values():
            self._driver.free(place)
        self._memory.clear()
