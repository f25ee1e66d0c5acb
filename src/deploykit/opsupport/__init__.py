"""Operator support: rules, verdicts and the checker that asks every source of truth."""
