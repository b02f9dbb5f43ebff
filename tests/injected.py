"""Programs that code is brought into, whatever they are at."""

from __future__ import annotations

from pathlib import Path

#: What each does again and again until its file ``end`` is there; it counts what came out right.
PROGRAMS = {
    "python": "n += sum(range(1000)) == 499500",
    "sleep": "t = time.monotonic(); time.sleep(0.3); n += time.monotonic() - t >= 0.3",
    "read": "n += os.read(r, 1) == b'x'",
    "epoll": "n += e.poll() == [(r, select.EPOLLIN)]; os.read(r, 1)",
    "epoll with a time-out": "t = time.monotonic(); n += e2.poll(0.2) == []; "
    "assert time.monotonic() - t >= 0.19",
    "lock": "n += lock.acquire(timeout=0.3) is False",
    "condition": "n += done.wait(0.2) is False",
    "hash": "n += hashlib.sha256(big).hexdigest() == digest",
    "compress": "n += zlib.decompress(zlib.compress(big[:400000], 1)) == big[:400000]",
    "child": "n += subprocess.run(['sleep', '0.1']).returncode == 0",
    "fork": "p = os.fork(); p or os._exit(0); n += os.waitpid(p, 0)[0] == p",
    "signals": "signal.setitimer(signal.ITIMER_REAL, 0.0005); n += sum(range(1000)) == 499500",
}

HEAD = """
import hashlib, os, select, signal, subprocess, sys, threading, time, zlib
marks = []
signal.signal(signal.SIGALRM, lambda *_: None)
big = bytes(range(256)) * 40000
digest = hashlib.sha256(big).hexdigest()
lock = threading.Lock(); lock.acquire()
done = threading.Event()
r, w = os.pipe(); r2, w2 = os.pipe()
e = select.epoll(); e.register(r, select.EPOLLIN)
e2 = select.epoll(); e2.register(r2, select.EPOLLIN)
def feed():
    while True:
        time.sleep(0.15)
        os.write(w, b'x')
"""
#: Programs that read need what they read.
FED = {"read", "epoll"}
LOOP = """
print('ready', flush=True)
n = 0; turns = 0
while turns == 0 or not os.path.exists(sys.argv[1]):
    turns += 1
    {body}
signal.setitimer(signal.ITIMER_REAL, 0)
print(n == turns, *marks, flush=True)
"""


def waits_for_ever(pid: int) -> bool:
    """Whether the main thread waits for a lock: for the interpreter's it does so for a while."""
    number, *arguments = Path(f"/proc/{pid}/syscall").read_text().split()
    return number.isdigit() and arguments[3] == "0x0"
