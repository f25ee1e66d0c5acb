"""Targets, one folder each: description, rules, converter, runtime."""
