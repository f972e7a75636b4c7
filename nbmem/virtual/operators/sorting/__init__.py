"""Sorting, scans, histograms and unique values, as CUB does them."""
