"""A member that only answers, for the tests of the helper itself: they need no broker.

It runs inside the container as `python3 -c`, so it needs no more than a base image. GET / tells its
name and how often it has started on this data; GET /fetch/HOST/PORT/PATH fetches that page itself,
or answers 502 with the reason why it can't.
"""

import json
import urllib.error
import urllib.request

from containers.workload import DATA, NODE_PORT, Workload

FETCH_SECONDS_MAX = 2.0

PROGRAM = f"""
import http.server, json, os, pathlib, signal, sys, urllib.request

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
boots = pathlib.Path("{DATA}/boots")
boots.write_text(str(int(boots.read_text()) + 1 if boots.exists() else 1))

class Echo(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        me = {{"name": os.environ["NAME"], "boots": int(boots.read_text())}}
        status, body = 200, json.dumps(me)
        if self.path.startswith("/fetch/"):
            host, port, path = self.path.removeprefix("/fetch/").split("/", 2)
            try:
                with urllib.request.urlopen(
                    f"http://{{host}}:{{port}}/{{path}}", timeout={FETCH_SECONDS_MAX}
                ) as answer:
                    body = answer.read().decode()
            except OSError as error:
                status, body = 502, str(error)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

print("listening", flush=True)
http.server.ThreadingHTTPServer(("0.0.0.0", {NODE_PORT}), Echo).serve_forever()
"""


def echo_nodes(image: str) -> Workload:
    """Members that answer over HTTP; `image` has Python."""
    return Workload(
        image,
        NODE_PORT,
        why_not_answering,
        command=("python3", "-c", PROGRAM),
        environment=lambda name: {"NAME": name, "PYTHONUNBUFFERED": "1"},
    )


def ask(address: str, *, deadline_s: float = 2 * FETCH_SECONDS_MAX) -> tuple[str, int]:
    """The name and the number of starts of the member at `address`. `OSError` if it is silent."""
    with urllib.request.urlopen(f"http://{address}/", timeout=deadline_s) as answer:
        body = json.load(answer)
    return body["name"], body["boots"]


def sees(address: str, host: str, port: int = NODE_PORT, path: str = "") -> bool:
    """Whether the member at `address` gets an answer from `host`. `OSError` if it is silent."""
    url = f"http://{address}/fetch/{host}/{port}/{path}"
    try:
        with urllib.request.urlopen(url, timeout=4 * FETCH_SECONDS_MAX):
            return True
    except urllib.error.HTTPError as error:
        error.close()
        return False


def why_not_answering(address: str) -> str | None:
    """None if the member answers, else the error."""
    try:
        ask(address)
    except OSError as error:
        return f"{type(error).__name__}: {error}"
    return None
