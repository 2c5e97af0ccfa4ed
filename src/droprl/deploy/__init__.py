"""Shipping a policy."""
