"""Admission decisions: (request, facts) to a verdict. No I/O, no clock."""
