"""The TensorRT for RTX target."""
