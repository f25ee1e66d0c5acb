"""The GPUs of the machine in the metrics, where NVIDIA's management library is: `pip install nvidia-ml-py`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from prometheus_client import Gauge

if TYPE_CHECKING:
    from collections.abc import Callable

    from prometheus_client import CollectorRegistry


def collector(registry: CollectorRegistry) -> Callable[[], None]:
    """What reads the GPUs into gauges when metrics are asked for; nothing is exported where there is no GPU."""
    nvml = _opened()
    if nvml is None:
        return lambda: None
    used = Gauge("deploykit_gpu_memory_used_bytes", "Memory in use on the GPU.", ["gpu"], registry=registry)
    total = Gauge("deploykit_gpu_memory_total_bytes", "Memory of the GPU.", ["gpu"], registry=registry)
    busy = Gauge(
        "deploykit_gpu_utilization_ratio", "Share of the time in which the GPU ran.", ["gpu"], registry=registry
    )

    def read() -> None:
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            used.labels(str(index)).set(memory.used)
            total.labels(str(index)).set(memory.total)
            busy.labels(str(index)).set(nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)

    return read


def _opened() -> Any:
    """The library, initialised; None without it, or without a driver for it."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return None
    return nvml
