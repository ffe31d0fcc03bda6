"""Loops: read the world, call a pure function, write the result."""
