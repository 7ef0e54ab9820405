"""Figures with controls: moving something shows what a still picture cannot.

`figure` is the machinery; every other module here is one figure: a pure function that computes, one that draws, and
`figure(...)`, which puts controls to them. In a notebook::

    from tapelab.interactive import clipping

    clipping.figure().show()

Where nobody can move anything (papermill, nbval, no ipywidgets), `show` draws the figure once, as it starts.
"""

from tapelab.interactive.figure import Choice, Figure, Slider

__all__ = ["Choice", "Figure", "Slider"]
