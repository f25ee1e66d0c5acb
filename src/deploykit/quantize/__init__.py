"""Calibration and quantization; empty on purpose, since `deploykit.quantize` is the function."""
