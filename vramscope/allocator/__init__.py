"""A model of the CUDA caching allocator in pure Python and NumPy, without torch."""
