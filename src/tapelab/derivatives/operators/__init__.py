"""Differential operators: the Laplacian and others of second order, the biharmonic one, derivatives along a curve."""
