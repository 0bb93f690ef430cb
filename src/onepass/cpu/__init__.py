"""Which CPU algorithm serves a problem. Pure Python: the kernels are in include/onepass/cpu."""
