"""Fourier transforms by cuFFT."""
