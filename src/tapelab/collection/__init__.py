"""The keeper's wing: it looks after the notebooks as files. What a notebook imports never imports this."""

import sys

# jsonschema, which nbformat and papermill import, loads a checker of formats for each of these that it finds. The first
# takes longer than all the rest of the import, and no check of a notebook uses any of them.
for checker in ("rfc3987_syntax", "rfc3986_validator", "isoduration", "fqdn", "uri_template", "webcolors"):
    sys.modules.setdefault(checker, None)
