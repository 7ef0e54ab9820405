"""Teaching notebooks on automatic differentiation with ``tf.GradientTape``, and what they import.

Importing the package itself loads nothing: each notebook imports the modules that it uses.
"""

__version__ = "0.1.0"
