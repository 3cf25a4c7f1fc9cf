"""CUDA kernels, and what builds, launches and times them. Importing this needs neither torch nor a GPU."""
