"""Ask every address that the notebooks and pages link to whether it is still there. It needs a network; CI has none.

    make links                   all of them
    make links ARGS=doi.org      those with this in them

An address is dead where its host is unknown or answers that there is nothing (404, 410). Some publishers turn programs
away (403, 429): these are counted and not called dead.
"""

import re
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "notebooks/*.py", "site/*.md", "ci/bench/*.md", "ci/derivative_audit/*.md")
OURS = ("https://github.com/tapelab/tapelab/", "https://colab.research.google.com/github/tapelab/tapelab/")
DEAD = (404, 410)


def links():
    """Every address in Markdown's links, and the first file that has it: a dict."""
    found = {}
    for pattern in PAGES:
        for path in sorted(ROOT.glob(pattern)):
            for address in re.findall(r"\]\((https?://[^)\s]+)\)", path.read_text(encoding="utf-8")):
                if not address.startswith(OURS):
                    found.setdefault(address.partition("#")[0], path.relative_to(ROOT).as_posix())
    return found


def answer(address):
    """What an address answers: a status, or what went wrong on the way there."""
    request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (tapelab's check of its links)"})
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        return f"{type(error).__name__}: {error}"


def main():
    wanted = {address: page for address, page in links().items() if all(part in address for part in sys.argv[1:])}
    with ThreadPoolExecutor(8) as pool:
        answers = dict(zip(wanted, pool.map(answer, wanted), strict=True))
    dead = {address: said for address, said in answers.items() if said in DEAD or isinstance(said, str)}
    for address, said in dead.items():
        print(f"{wanted[address]}: {address}: {said}")
    silent = sum(said not in DEAD and isinstance(said, int) and said >= 400 for said in answers.values())
    print(f"{len(answers)} addresses: {len(dead)} dead, {silent} would not tell a program")
    sys.exit(bool(dead))


if __name__ == "__main__":
    main()
