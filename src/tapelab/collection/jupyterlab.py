"""JupyterLab, started in a folder of notebooks, on this machine only."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import platformdirs


def start(place: Path, first: str, options: tuple[str, ...]) -> NoReturn:
    """Let JupyterLab take this process's place.

    Args:
        place: the folder that it shows.
        first: the page that it opens, such as "/lab".
        options: further options of JupyterLab, which come first where they say something else.
    """
    own = ["--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={place.resolve()}", f"--LabApp.default_url={first}"]
    own += _layout()
    command = [sys.executable, "-m", "jupyter", "lab", *own, *options]
    # JupyterLab reads our defaults for its settings from the folder "labconfig" there; what a user has set comes first.
    paths = [str(Path(__file__).parent), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, paths))
    sys.stdout.flush()
    if os.name == "posix":
        os.execv(command[0], command)  # so that Ctrl-C is JupyterLab's to answer
    sys.exit(subprocess.call(command))


def _layout() -> list[str]:
    """The option for the folder in which JupyterLab keeps its layout: as the user left it, at first wide enough for
    the notebooks' names. Where that folder cannot be written, no option."""
    from jupyterlab_server.workspaces_handler import WorkspacesManager  # slow: no other command waits for it

    folder = Path(platformdirs.user_data_dir("tapelab")) / "workspaces"
    left = {"collapsed": False, "visible": True, "current": "filebrowser", "widgets": ["filebrowser"]}
    first = {"layout-restorer:data": {"left": left, "relativeSizes": [0.3, 0.7, 0]}}
    try:
        if not any(folder.glob("*")):
            WorkspacesManager(str(folder)).save("default", json.dumps({"metadata": {"id": "default"}, "data": first}))
    except OSError:
        return []
    return [f"--LabApp.workspaces_dir={folder}"]
