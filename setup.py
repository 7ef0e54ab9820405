"""What pyproject.toml cannot say.

A built package carries the notebooks, without outputs, for `tapelab lab`. Its description is the README, whose links to
files of the checkout lead nowhere on a package index: there they are addresses.
"""

import json
import re
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
NOTEBOOKS = ROOT / "notebooks"
_TARGET = re.compile(r"(!?)(\[[^\[\]]*\])\((?![a-z]+:|#)")  # before a picture's or a link's path in the checkout


def description():
    """The README for a package index: pictures as files, links as pages of the repository."""
    collection = tomllib.loads((NOTEBOOKS / "collection.toml").read_text(encoding="utf-8"))
    repository, ref = collection["repository"], collection["ref"]
    link = f"https://github.com/{repository}/blob/{ref}/"
    picture = f"https://raw.githubusercontent.com/{repository}/{ref}/"
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return _TARGET.sub(lambda found: f"{found[1]}{found[2]}({picture if found[1] else link}", text)


class WithNotebooks(build_py):
    """Copies the collection into the package, but for an editable one, which is read where it lies."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "tapelab" / "notebooks"
        target.mkdir(parents=True, exist_ok=True)
        for source in NOTEBOOKS.glob("*.ipynb"):
            notebook = json.loads(source.read_text(encoding="utf-8"))
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell.update(outputs=[], execution_count=None)
            (target / source.name).write_text(json.dumps(notebook, ensure_ascii=False), encoding="utf-8")
        (target / "collection.toml").write_bytes((NOTEBOOKS / "collection.toml").read_bytes())


setup(
    cmdclass={"build_py": WithNotebooks},
    long_description=description(),
    long_description_content_type="text/markdown",
)
