"""Web servers on the loopback that answer as a test says."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading


@contextlib.contextmanager
def serving(handler, port=0, *, daemon_threads=True):
    """Let a handler answer at a port of the loopback, a free one for 0, and print nothing; give the server."""
    handler.log_message = lambda *_: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        server.daemon_threads = daemon_threads
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class Receiver:
    """Takes what is posted, and may be away.

    `answer` gives the status of each body. `asked` has all bodies, `bodies` and `headers` those answered with 200.
    """

    def __init__(self):
        self.asked, self.bodies, self.headers = [], [], []
        self.answer = lambda body: 200
        self.port, self._server = 0, contextlib.ExitStack()
        self.up()

    @property
    def url(self):
        """The address, which is the same again after it was away."""
        return f"http://127.0.0.1:{self.port}/hook"

    def up(self):
        """Begin to answer, at the port of before."""
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.asked.append(body)
                code = receiver.answer(body)
                if code == 200:
                    receiver.bodies.append(body)
                    receiver.headers.append(dict(self.headers))
                self.send_response(code)
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

        server = serving(Handler, self.port, daemon_threads=False)
        self.port = self._server.enter_context(server).server_port

    def down(self):
        """Answer nobody any more."""
        self._server.close()
