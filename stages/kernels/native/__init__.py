"""Kernels in C++ for CPUs: compiled on this machine at first use, kept in the cache, called through ctypes."""
