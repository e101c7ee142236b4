"""The trace directory: schema, appending writer and reader.

Only this package and export/ use Arrow.
"""
