"""The audit at special points: zeros, ties, boundaries, equal eigenvalues … (`make ARGS=--special audit`).

The rest of the audit draws its points at random, where none of these is ever met. Here every case has its point, and
says how many derivatives its function has there. Where there is one it is to be found; where there is none, what
TensorFlow gives is named.
"""
