"""Input data sources, sampling and the preprocessing contract.

Names are loaded when first used, so that `deploykit.data.specs` costs nothing but the standard library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deploykit.data.carry import CarriedState
    from deploykit.data.contract import InputContract, InputRule, PreprocessSpec
    from deploykit.data.dataset import Dataset, open_data
    from deploykit.data.digests import digest_of
    from deploykit.data.dtypes import numpy_dtype
    from deploykit.data.request import DataRequest, bounds_of, data_request, dim_ranges, open_request
    from deploykit.data.samples import Sample
    from deploykit.data.specs import DimRange, format_input, parse_dim, parse_fixed_dim, parse_input, parse_range

_HOMES = {
    "CarriedState": "carry",
    "DataRequest": "request",
    "Dataset": "dataset",
    "DimRange": "specs",
    "InputContract": "contract",
    "InputRule": "contract",
    "PreprocessSpec": "contract",
    "Sample": "samples",
    "bounds_of": "request",
    "data_request": "request",
    "digest_of": "digests",
    "dim_ranges": "request",
    "format_input": "specs",
    "numpy_dtype": "dtypes",
    "open_data": "dataset",
    "open_request": "request",
    "parse_dim": "specs",
    "parse_fixed_dim": "specs",
    "parse_input": "specs",
    "parse_range": "specs",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"deploykit.data.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CarriedState",
    "DataRequest",
    "Dataset",
    "DimRange",
    "InputContract",
    "InputRule",
    "PreprocessSpec",
    "Sample",
    "bounds_of",
    "data_request",
    "digest_of",
    "dim_ranges",
    "format_input",
    "numpy_dtype",
    "open_data",
    "open_request",
    "parse_dim",
    "parse_fixed_dim",
    "parse_input",
    "parse_range",
]
