"""The GPU half: device descriptions and plans. Nothing here needs a GPU, a driver or a CUDA package to be imported."""
