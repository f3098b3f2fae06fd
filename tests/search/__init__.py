"""Explicit-state search over the real flows and the real rules, for small sizes."""
