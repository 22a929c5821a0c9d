"""The API server over HTTP, as an administrator."""
import json
import urllib.error
import urllib.request


class Refused(Exception):
    def __init__(self, status, message):
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    def __init__(self, address, control):
        self.url, self.control, self.user = f"https://{address}:6443", control, "admin"
        self.context = None

    def call(self, method, path, body=None, kind="application/json"):
        if self.context is None:
            self.context = self.control.trust()
        headers = {"Authorization": f"Bearer {self.control.token(self.user)}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.context, timeout=30) as answer:
                text, kind = answer.read().decode(errors="replace"), answer.headers.get_content_type()
        except urllib.error.HTTPError as error:
            raise Refused(error.code, error.read().decode(errors="replace")) from None
        return json.loads(text) if kind == "application/json" else text

    def get(self, path):
        return self.call("GET", path)

    def find(self, path):
        """The object, or nothing if there is none."""
        try:
            return self.get(path)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def create(self, path, body):
        return self.call("POST", path, body)

    def replace(self, path, body):
        return self.call("PUT", path, body)

    def merge(self, path, body):
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def delete(self, path, grace_s=0):
        try:
            return self.call("DELETE", path, {"gracePeriodSeconds": grace_s, "propagationPolicy": "Background"})
        except Refused as refused:
            if refused.status != 404:
                raise
            return None

    def ready(self):
        try:
            return self.control.ca.exists() and self.get("/readyz") == "ok"
        except (Refused, OSError):
            return False
