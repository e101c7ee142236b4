"""The model of the CUDA caching allocator: pure, no torch."""
