"""`make links` finds the addresses in pages, and calls dead what is not there; these addresses are this machine's."""

import http.server
import importlib.util
import threading
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def links():
    spec = importlib.util.spec_from_file_location("links", ROOT / "ci" / "links.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def host():
    """The address of a server that answers with the status that it is asked for."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(int(self.path.strip("/")))
            self.end_headers()

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def test_addresses_are_found_with_their_page(links):
    found = links.links()
    assert found["https://arxiv.org/abs/1412.6980"] == "notebooks/02_training_with_a_tape.py"
    assert len(found) > 100
    assert not any(address.startswith(links.OURS) for address in found)


def test_what_is_gone_is_dead_and_what_turns_programs_away_is_not(links, host, monkeypatch, capsys):
    pages = {f"{host}/{status}": "page.md" for status in (200, 404, 410, 403)}
    monkeypatch.setattr(links, "links", lambda: pages | {"http://nobody.invalid/": "other.md"})
    monkeypatch.setattr("sys.argv", ["links.py"])
    with pytest.raises(SystemExit) as end:
        links.main()
    assert end.value.code == 1
    *dead, counted = capsys.readouterr().out.splitlines()
    assert [line.rpartition("/")[2].split(":")[0] for line in dead] == ["404", "410", ""]
    assert dead[2].startswith("other.md: http://nobody.invalid/: URLError")
    assert counted == "5 addresses: 3 dead, 1 would not tell a program"
