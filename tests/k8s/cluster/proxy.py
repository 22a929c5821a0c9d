"""An API server without TLS in front of the real one, as `kubectl proxy` is.

It does four things that tests need. A field selector is taken away where the server has none for objects of a
custom resource, which has one since 1.30. All watches can be ended, as a server ends them after some minutes. New
watches can be asked for from an older version, as if they had been long on their way. And requests can be refused."""
import http.client
import http.server
import threading
import urllib.parse

PORT = 8001


class Proxy:
    def __init__(self, address, control, user="agent"):
        self.address, self.control, self.user = address, control, user
        self.ending = threading.Event()
        # The version from which new watches are asked for, instead of their own.
        self.version = None
        # Method and path of each request; statuses of watches that the server refused.
        self.seen, self.refused = [], []
        # Refuses a request by this status, if the function says so.
        self.refuse = lambda method, path: None
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self):
                proxy.pass_on(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.ending.set()
        self.server.shutdown()
        self.server.server_close()

    def end_watches(self):
        """Each watch ends as after its time."""
        self.ending.set()
        self.ending = threading.Event()

    def path(self, path):
        parts = urllib.parse.urlsplit(path)
        query = urllib.parse.parse_qsl(parts.query)
        if "/apis/resource.k8s.io/" in path:
            query = [pair for pair in query if pair[0] != "fieldSelector"]
        if self.version and ("watch", "1") in query:
            query = [(name, self.version if name == "resourceVersion" else value) for name, value in query]
        return urllib.parse.urlunsplit(("", "", parts.path, urllib.parse.urlencode(query), ""))

    def pass_on(self, request):
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        self.seen.append((request.command, request.path))
        if status := self.refuse(request.command, request.path):
            self.answer(request, status, b'{"kind":"Status","message":"refused by the test"}')
            return
        ending = self.ending
        server = http.client.HTTPSConnection(self.address, 6443, context=self.control.trust())
        headers = {"Authorization": f"Bearer {self.control.token(self.user)}"}
        if kind := request.headers.get("Content-Type"):
            headers["Content-Type"] = kind
        try:
            server.request(request.command, self.path(request.path), body or None, headers)
            answer = server.getresponse()
            if "watch=1" in request.path and answer.status == 200:
                self.watch(request, server, answer, ending)
            else:
                if "watch=1" in request.path:
                    self.refused.append(answer.status)
                self.answer(request, answer.status, answer.read())
        except OSError:
            request.close_connection = True
        finally:
            server.close()

    def answer(self, request, status, body):
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    def watch(self, request, server, answer, ending):
        request.send_response(200)
        request.send_header("Content-Type", "application/json")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        lines = threading.Thread(target=self.lines, args=(request, answer), daemon=True)
        lines.start()
        while lines.is_alive() and not ending.wait(0.05):
            pass
        if lines.is_alive():
            server.sock.shutdown(2)
            lines.join()
        try:
            request.wfile.write(b"0\r\n\r\n")
        except OSError:
            pass

    def lines(self, request, answer):
        try:
            while line := answer.readline():
                if b'"code":410' in line:
                    self.refused.append(410)
                request.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        except (OSError, http.client.HTTPException, ValueError):
            pass
