"""The quantities of the caching allocator, which every total of a recording has."""

QUANTITIES = ("requested", "allocated", "active", "reserved")
"""Each includes the one before it: requested, rounded up, with pending frees, in segments."""
