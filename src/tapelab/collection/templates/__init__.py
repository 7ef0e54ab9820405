"""What is generated as text or a picture: templates of Jinja, each a file in this folder."""

from typing import Any

import jinja2

ENVIRONMENT = jinja2.Environment(
    loader=jinja2.PackageLoader("tapelab.collection"),
    autoescape=lambda name: name.endswith((".html.j2", ".svg.j2")),  # the others are Markdown
    undefined=jinja2.StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)


def rendered(name: str, **values: Any) -> str:
    """What a template of this folder gives, without empty lines at its end.

    Args:
        name: its file's, without ``.j2``.
        values: what stands for the names in it.
    """
    return ENVIRONMENT.get_template(f"{name}.j2").render(values).rstrip()
