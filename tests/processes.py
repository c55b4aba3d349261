"""Scripts of the project in processes of their own, which start at once: see tests/fork_server.py."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_servers: list[subprocess.Popen] = []


def run_script(
    script: str, *arguments: str, cwd: Path = ROOT, timeout: float = 240, **environment: str
) -> subprocess.CompletedProcess:
    """Run a script of the checkout to its end; output is captured."""
    codes, out, err = _run(script, arguments, cwd, timeout, [environment])
    return subprocess.CompletedProcess([script, *arguments], codes[0], out, err)


def run_group(
    script: str, *arguments: str, count: int = 2, timeout: float = 200, **environment: str
) -> subprocess.CompletedProcess:
    """Run a script as `torchrun --nproc_per_node count` would; the exit code is the first that is not 0."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    group = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank), **group, **environment} for rank in range(count)]
    codes, out, err = _run(script, arguments, ROOT, timeout, ranks)
    return subprocess.CompletedProcess([script, *arguments], next(filter(None, codes), 0), out, err)


def _run(script: str, arguments, cwd: Path, timeout: float, environments: list[dict]) -> tuple[list[int], str, str]:
    server = _server()
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        request = {"script": str(ROOT / script), "arguments": list(arguments), "folder": str(cwd)}
        whole = [{**os.environ, "OMP_NUM_THREADS": "1", **environment} for environment in environments]
        request |= {"out": str(out), "err": str(err), "environments": whole}
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        if not select.select([server.stdout], [], [], timeout)[0]:
            _print_stacks(server, err)
            _end()
            raise subprocess.TimeoutExpired([script, *arguments], timeout, _text(out), _text(err))
        answer = server.stdout.readline()
        assert answer, "the fork server has ended"
        return json.loads(answer), _text(out), _text(err)


def _print_stacks(server: subprocess.Popen, err: Path) -> None:
    """Ask all that the server has started where they are: what hangs once in a thousand times is seen only then."""
    os.killpg(server.pid, signal.SIGUSR2)
    time.sleep(2)  # none of them answers otherwise
    print(_text(err)[-20_000:], file=sys.stderr)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _server() -> subprocess.Popen:
    """The server of this test process, started on first use."""
    if not _servers or _servers[0].poll() is not None:
        command = [sys.executable, str(ROOT / "tests" / "fork_server.py")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        _servers[:] = [subprocess.Popen(command, **pipes, text=True, env=environment, start_new_session=True)]
        atexit.register(_end)
    return _servers[0]


def _end() -> None:
    """End the server with all that it has started."""
    for server in _servers:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    _servers.clear()
