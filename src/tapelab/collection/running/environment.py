"""What a kernel runs on: Python, packages, tapelab's own source, devices. A run is repeated when any of it has changed.

The file imports the standard library only: it also runs as a script, under the interpreter of a kernel's environment.
"""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

SECONDS = 60  # in which an interpreter must describe itself


def describe() -> dict[str, str | dict[str, str]]:
    """This interpreter's environment, without names of people, machines or places: a dict that JSON can hold."""
    packages = {d.metadata["Name"]: d.version for d in importlib.metadata.distributions() if d.metadata["Name"]}
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "device": _device(),
        "tapelab": _source_digest(),
        "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower())),
    }


def _device() -> str:
    """``CPU``, or the names of the NVIDIA GPUs that a program would see."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1") or not shutil.which("nvidia-smi"):
        return "CPU"
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    asked = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS)
    return "; ".join(asked.stdout.split("\n")).strip("; ") if asked.returncode == 0 and asked.stdout.strip() else "CPU"


def _source_digest() -> str:
    """A digest of tapelab's source files: an installed checkout changes without a change of version."""
    spec = importlib.util.find_spec("tapelab")
    if spec is None:
        return "not installed"
    digest = hashlib.sha256()
    folder = Path(spec.origin).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(f"{path.relative_to(folder)}\0{path.read_text(encoding='utf-8')}\0".encode())
    return digest.hexdigest()[:16]


def of_kernel(name: str) -> dict[str, str | dict[str, str]]:
    """The environment of an installed kernel.

    Raises:
        KernelError: if no kernel of that name is installed, or its interpreter does not start.
    """
    from tapelab.collection.running.kernel import KernelError

    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        spec = KernelSpecManager().get_kernel_spec(name)
    except NoSuchKernel:
        known = ", ".join(sorted(KernelSpecManager().find_kernel_specs()))
        raise KernelError(f"no kernel is called {name!r}; installed: {known}") from None
    interpreter = spec.argv[0] if spec.argv else ""
    # jupyter_client, too, takes these names for the interpreter that it runs under.
    own = Path(interpreter).name == interpreter and interpreter.startswith("python")
    if own or Path(interpreter) == Path(sys.executable):
        return describe()
    try:
        command = [interpreter, "-P", __file__]
        asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=SECONDS)
        return json.loads(asked.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        # The kernel will not start either, and each run will say so.
        return {"kernel": name, "problem": type(error).__name__}


def digest(environment: dict) -> str:
    """A short text that changes with anything in an environment."""
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:16]


if __name__ == "__main__":
    print(json.dumps(describe()))
