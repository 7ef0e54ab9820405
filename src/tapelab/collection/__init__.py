"""The keeper's wing: it looks after the notebooks as files. What a notebook imports never imports this."""

import sys

# jsonschema, which nbformat and papermill import, loads a grammar of URIs if it finds it. That takes longer than all
# the rest of their import, and no check of a notebook uses it.
sys.modules.setdefault("rfc3987_syntax", None)
