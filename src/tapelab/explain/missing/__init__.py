"""Why a gradient is None: whether a path leads from the source to the target, and where it is cut."""
