"""Frameworks that call us: one a file, late imports."""
