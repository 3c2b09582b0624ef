"""A program that runs on a host."""
import os
import pty
import re
import signal
import subprocess
import threading
import time

from .errors import HostsError


class Program:
    """A started program. Its standard output and error are one text, as on a terminal.

    With `terminal` they are a pseudo-terminal, so the program prints what it prints on a screen.
    """

    def __init__(self, command, name, terminal):
        self.name = name  # for messages
        self.command = ""  # as its host was told
        self.began = time.monotonic()
        self.ended = None  # the time when it ended, as time.monotonic() counts
        self._output = bytearray()
        if terminal:
            read_end, write_end = pty.openpty()
        else:
            read_end, write_end = os.pipe()
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=write_end, stderr=write_end,
                                         start_new_session=True)
        os.close(write_end)
        self._reader = threading.Thread(target=self._read, args=(read_end,), daemon=True)
        self._reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def text(self):
        """Its output so far."""
        return bytes(self._output).decode(errors="replace").replace("\r\n", "\n")

    def poll(self):
        """Returns its exit code (128 + the signal that killed it), or None while it runs."""
        if self.ended is None:
            return None
        code = self._process.returncode
        return code if code >= 0 else 128 - code

    def wait(self, seconds):
        """Waits until it has ended, and returns its exit code. Raises HostsError if it still runs after that time."""
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                raise HostsError(f"{self.name} still runs after {seconds:.1f} s")
            time.sleep(0.01)
        self._reader.join(2)
        return self.poll()

    def wait_for(self, pattern, seconds):
        """Waits until its output has a match for this regular expression, and returns the match."""
        end = time.monotonic() + seconds
        while True:
            over = self.poll() is not None
            if over:
                self._reader.join(2)
            match = re.search(pattern, self.text())
            if match:
                return match
            if over:
                raise HostsError(f"{self.name} ended with {self.poll()} and has not printed '{pattern}'")
            if time.monotonic() > end:
                raise HostsError(f"{self.name} has not printed '{pattern}' within {seconds:.1f} s")
            time.sleep(0.01)

    def send(self, number=signal.SIGINT):
        """Sends a signal to the program itself, not to processes that it has started."""
        if self.poll() is None:
            self._process.send_signal(number)

    def _read(self, descriptor):
        while True:
            try:
                read = os.read(descriptor, 65536)
            except OSError:  # a pseudo-terminal that no process has open
                read = b""
            if not read:
                os.close(descriptor)
                return
            self._output += read

    def _wait(self):
        self._process.wait()
        self.ended = time.monotonic()
