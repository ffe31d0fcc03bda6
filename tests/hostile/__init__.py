"""Clients that behave badly, what honest callers notice of them, and what they cost the server.

python -m hostile         every attack by itself beside honest calls; writes docs/proofs/hostile.md
"""
