"""Charges and quota: integers only, time is an input."""
