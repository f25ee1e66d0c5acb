"""What worker processes are told by their environment, and the names of the signals that end them."""

from __future__ import annotations

import signal

# Vendors phone home, colour their logs or grab all cores unless told otherwise.
QUIET = {
    "OPENVINO_TELEMETRY": "0",
    "OV_TELEMETRY_ENABLED": "0",
    "ORT_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "TF_CPP_MIN_LOG_LEVEL": "2",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "PYTHONIOENCODING": "utf-8",
    "PYTHONUNBUFFERED": "1",
}
# Another environment's interpreter must not find this one's packages, nor the user's.
ELSEWHERE = {"PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
# Memory at the same addresses, and sets in the same order, every time.
FIXED = {"DEPLOYKIT_FIXED_ADDRESSES": "1", "PYTHONHASHSEED": "0"}


def signal_name(number: int) -> str:
    """`SIGSEGV`; real-time signals have no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
