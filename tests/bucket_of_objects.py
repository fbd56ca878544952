"""A store of objects that takes conditional writes by HTTP, with the rules of S3.

``If-Match`` compares the ETag, a hash of the content alone; ``If-None-Match: *`` wants that
there is no object.  A condition that does not hold is answered with 412, and nothing is written.
"""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Handler(BaseHTTPRequestHandler):
    server: Bucket

    def do_GET(self) -> None:
        content = self.server.objects.get(self.path)
        self._answer(404 if content is None else 200, content or b"", _etag(content))

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        wanted, absent = self.headers.get("If-Match"), self.headers.get("If-None-Match")
        with self.server.guard:
            found = self.server.objects.get(self.path)
            if (wanted and _etag(found) != wanted) or (absent == "*" and found is not None):
                self._answer(412)
                return
            self.server.objects[self.path] = content
        self._answer(200)

    def _answer(self, code: int, content: bytes = b"", etag: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        if etag:
            self.send_header("ETag", etag)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def _etag(content: bytes | None) -> str:
    return "" if content is None else f'"{hashlib.sha256(content).hexdigest()}"'


class Bucket(ThreadingHTTPServer):
    """The store, and its address."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.guard = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever)

    def start(self) -> Bucket:
        self._thread.start()
        return self

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


def serve() -> Bucket:
    """Start one."""
    return Bucket().start()
