"""The whole chain: configuration, plan, cache, run, resume."""
