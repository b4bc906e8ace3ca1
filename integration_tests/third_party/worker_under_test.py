"""Runs a real worker-orcd on a free port, with a small random model that make-model writes."""

import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

NANO = "nano.gguf"
# Long, because sanitizers slow everything down.
PATIENCE_S = 120


class WorkerUnderTest:
    """Owns the process, its model folder and its log, from the programs in `bin_dir`.

    `args` are more flags of the worker; `vocab_from` is a GGUF file whose vocabulary and chat
    template the model has. With `model_dir` the worker uses that folder's models and has no model
    of its own.
    """

    def __init__(self, bin_dir, args=(), vocab_from=None, model_dir=None):
        self._args = list(args)
        self._vocab_from = vocab_from
        self._bin = pathlib.Path(bin_dir)
        self._folder = pathlib.Path(tempfile.mkdtemp(prefix="orcd-third-party-"))
        models = pathlib.Path(model_dir or self._folder / "models")
        self._log = open(self._folder / "log", "w+", encoding="utf-8")
        self._models = models
        self._process = None
        self.address = "127.0.0.1:0"
        try:
            if model_dir is None:
                models.mkdir()
                self._make_model(models / NANO)
            self.start()
        except BaseException:
            self.close()
            raise

    def _make_model(self, path):
        command = [self._bin / "make-model", "--size", "nano", "--type", "F16", "--out", path]
        if self._vocab_from:
            command += ["--vocab-from", self._vocab_from]
        subprocess.run(
            command,
            check=True,
            timeout=PATIENCE_S,
            stdout=subprocess.DEVNULL,
        )

    def start(self, args=None):
        """Starts the worker at its previous address, with new flags if `args` is given."""
        if args is not None:
            self._args = list(args)
        address_file = self._folder / "address"
        address_file.unlink(missing_ok=True)
        command = [self._bin / "worker-orcd", "--listen", self.address]
        command += ["--listen-address-file", address_file, "--model-dir", self._models]
        command += self._args
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log)
        deadline = time.monotonic() + PATIENCE_S
        while not (address_file.exists() and address_file.read_text().strip()):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"worker-orcd did not come up:\n{self.log()}")
            time.sleep(0.02)
        self.address = address_file.read_text().strip()

    def side_address(self, which):
        """Address of another port: `health` or `metrics`."""
        return (self._folder / f"address.{which}").read_text().strip()

    @property
    def pid(self):
        return self._process.pid

    def log(self):
        self._log.flush()
        return pathlib.Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def is_running(self):
        return self._process.poll() is None

    def terminate(self):
        """Sends SIGTERM and returns the exit status."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self):
        """Waits for a worker that ends by itself, and returns the exit status."""
        return self._process.wait(timeout=PATIENCE_S)

    def signal(self, number):
        self._process.send_signal(number)

    def kill(self):
        """Sends SIGKILL to a worker that may run, be stopped or have ended."""
        self._process.kill()
        self._process.wait()

    def close(self):
        if self._process and self._process.poll() is None:
            self.kill()
        self._log.close()
        shutil.rmtree(self._folder)
