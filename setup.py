"""What pyproject.toml cannot say: a built package carries the notebooks, without outputs, for `tapelab lab`."""

import json
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

NOTEBOOKS = Path(__file__).parent / "notebooks"


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


setup(cmdclass={"build_py": WithNotebooks})
