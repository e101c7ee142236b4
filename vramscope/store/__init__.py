"""The trace directory.

Its schema, its appending writer, its reader. Only this package and export/ use Arrow.
"""
