"""The NVIDIA driver on this machine, asked through its own library: GPUs, memory, copies and streams.

Standard library only: this file is copied into build bundles, and is imported there as `trt_device`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import sys
from typing import Any

_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


class CudaError(RuntimeError):
    """A call of the driver failed. code: of `CUresult`."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} failed with CUDA error {code}")
        self.code = code


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU. capability: as NVIDIA writes it, "8.9"."""

    name: str
    capability: str


def library_name() -> str:
    """The driver's library."""
    return "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def why_no_device() -> str | None:
    """Why there is no GPU to use; None where there is one."""
    try:
        driver = Driver()
    except OSError:
        return f"no NVIDIA driver on this machine ({library_name()} does not load)"
    except CudaError as problem:
        return f"the NVIDIA driver finds no GPU to use ({problem})"
    return None if driver.devices() else "no NVIDIA GPU on this machine"


class Driver:
    """The CUDA driver. Memory is of the first GPU's primary context, which TensorRT uses, too."""

    def __init__(self, library: Any = None) -> None:
        """library: for tests. Raises OSError without a driver, CudaError where it does not start."""
        self._cuda = library if library is not None else ctypes.CDLL(library_name())
        self._call("cuInit", 0)

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._cuda, name)(*arguments)
        if code != 0:
            raise CudaError(name, code)

    def devices(self) -> list[Device]:
        """All GPUs, in the driver's order."""
        count = ctypes.c_int()
        self._call("cuDeviceGetCount", ctypes.byref(count))
        return [self._device(index) for index in range(count.value)]

    def _device(self, index: int) -> Device:
        handle, name = ctypes.c_int(), ctypes.create_string_buffer(256)
        self._call("cuDeviceGet", ctypes.byref(handle), index)
        self._call("cuDeviceGetName", name, 256, handle)
        numbers = [ctypes.c_int(), ctypes.c_int()]
        for number, attribute in zip(numbers, (_MAJOR, _MINOR)):  # noqa: B905 - also runs on Python 3.8 and 3.9
            self._call("cuDeviceGetAttribute", ctypes.byref(number), attribute, handle)
        return Device(name.value.decode(errors="replace"), f"{numbers[0].value}.{numbers[1].value}")

    def activate(self) -> None:
        """Makes the first GPU's primary context the thread's own."""
        handle, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGet", ctypes.byref(handle), 0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self._call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> int:
        """Device memory of that many bytes, one at least."""
        pointer = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(size, 1)))
        return pointer.value

    def free(self, pointer: int) -> None:
        """Gives memory back."""
        self._call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def to_device(self, pointer: int, address: int, size: int) -> None:
        """Copies from host memory at `address`."""
        if size:
            self._call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), ctypes.c_void_p(address), ctypes.c_size_t(size))

    def to_host(self, address: int, pointer: int, size: int) -> None:
        """Copies to host memory at `address`."""
        if size:
            self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(address), ctypes.c_uint64(pointer), ctypes.c_size_t(size))

    def stream(self) -> int:
        """A new stream."""
        handle = ctypes.c_void_p()
        self._call("cuStreamCreate", ctypes.byref(handle), 0)
        return handle.value or 0

    def wait(self, stream: int) -> None:
        """Returns when everything in the stream is done."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(stream))
