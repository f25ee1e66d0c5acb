"""Latency, throughput and memory of artifacts, measured in fresh processes."""
