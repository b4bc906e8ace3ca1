"""Runs a real smg from its package on free ports: the OpenAI-style gateway before workers."""

import http.client
import json
import os
import pathlib
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time

import openai

# smg starts within seconds; a loaded machine takes longer.
PATIENCE_S = 120
# Starts with other ports, if another process took one first.
STARTS = 5


def free_port():
    """A port that nobody listens on; another process may take it before it is used."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class SmgUnderTest:
    """Owns the process and its log.

    `args` are more flags of `smg launch`. smg's only workers are those named by `--worker-urls` and
    those that register themselves. `scheme` is https if the flags give smg a certificate;
    `authorities` is a file with the CAs that signed it.
    """

    def __init__(self, args=(), api_key=None, scheme="http", authorities=None):
        self._args = list(args)
        self._api_key = api_key
        self._scheme = scheme
        self._tls = ssl.create_default_context(cafile=authorities) if authorities else None
        self._log = tempfile.NamedTemporaryFile("w+", prefix="orcd-smg-", suffix=".log")
        self._process = None
        self.port = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def url(self):
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def start(self):
        """Starts smg, at its previous port if it has had one."""
        keeps_port = self.port is not None
        for left in reversed(range(STARTS)):
            if not keeps_port:
                self.port = free_port()
            logged = len(self.log())
            self._process = subprocess.Popen(
                self._command(),
                stdout=self._log,
                stderr=self._log,
                env={**os.environ, "HF_HUB_OFFLINE": "1"},
            )
            try:
                self.wait_for(self._answers, "smg did not come up")
                return
            except RuntimeError:
                if left == 0 or "Address already in use" not in self.log()[logged:]:
                    raise

    def _command(self):
        command = [sys.executable, "-m", "smg.cli", "launch"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        if "--worker-urls" not in self._args:
            command.append("--enable-igw")
        if self._api_key:
            command += ["--api-key", self._api_key]
        return command + self._args

    def _answers(self):
        if self._process.poll() is not None:
            raise RuntimeError(f"smg exited with {self._process.returncode}:\n{self.log()}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return True
        except OSError:
            return False

    def wait_for(self, condition, what, patience_s=PATIENCE_S):
        """Waits until `condition` returns a true value, and returns that value."""
        deadline = time.monotonic() + patience_s
        while True:
            if result := condition():
                return result
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what}:\n{self.log()[-20000:]}")
            time.sleep(0.05)

    def call(self, method, path, body=None, timeout_s=PATIENCE_S):
        """Status and JSON (or text) of the answer."""
        if self._tls:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=timeout_s, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        headers = {"content-type": "application/json"}
        if self._api_key:
            headers["authorization"] = f"Bearer {self._api_key}"
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, headers)
            response = connection.getresponse()
            answer = response.read().decode()
        finally:
            connection.close()
        try:
            return response.status, json.loads(answer)
        except ValueError:
            return response.status, answer

    def workers(self):
        """smg's list of workers, as a dict from address (host:port) to status."""
        status, answer = self.call("GET", "/workers")
        assert status == 200, (status, answer)
        return {w["url"].removeprefix("grpc://"): w["status"] for w in answer["workers"]}

    def wait_for_workers(self, addresses, patience_s=PATIENCE_S):
        """Waits until exactly these workers are ready and smg has the tokenizer of their model."""
        wanted = {address: "ready" for address in addresses}
        self.wait_for(
            lambda: self.workers() == wanted, f"its workers are not {wanted}", patience_s
        )
        if wanted:
            self.wait_for(
                lambda: self.call("GET", "/readiness")[0] == 200, "it is not ready", patience_s
            )

    def openai(self, **options):
        """A client of the `openai` package without retries."""
        options = {"max_retries": 0, "timeout": PATIENCE_S, **options}
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=self._api_key or "none", **options)

    @property
    def pid(self):
        return self._process.pid

    def log(self):
        return pathlib.Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def kill(self):
        self._process.kill()
        self._process.wait()

    def terminate(self):
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(timeout=PATIENCE_S)

    def close(self):
        if self._process and self._process.poll() is None:
            self.kill()
        self._log.close()
