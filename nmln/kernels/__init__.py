"""Kernels: moves at a fixed level that leave its distribution unchanged."""
