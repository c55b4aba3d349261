"""Destinations of --mirror without a second machine: a folder, an sshd on loopback, and a program named rclone."""

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest

RCLONE = """#!/bin/bash
# copy and check of the remote disk:, which is a folder
[ -e "{root}/unreachable" ] && {{ echo "connection refused" >&2; exit 1; }}
command=$1; shift; words=(); only=
for word; do
    case $word in --include=*) only=${{word#*=/}} ;; --*) ;; *) words+=("${{word/#disk:/{root}/}}") ;; esac
done
[ -d "${{words[0]}}" ] || exit 3
cd "${{words[0]}}" && find . -type f | while read -r name; do
    [ -n "$only" ] && [ "$name" != "./$only" ] && continue
    mkdir -p "$(dirname "${{words[1]}}/$name")"
    if [ $command = check ]; then cmp "$name" "${{words[1]}}/$name" || exit 1; else cp "$name" "${{words[1]}}/$name"; fi
done
"""


def rclone(folder: Path, monkeypatch) -> Path:
    """Put a program named rclone on PATH; returns the folder of its remote `disk:`."""
    root = folder / "disk"
    for made in (root, folder / "bin"):
        made.mkdir()
    (folder / "bin" / "rclone").write_text(RCLONE.format(root=root))
    (folder / "bin" / "rclone").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    return root


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """An SSH server of this user on loopback; the command with which rsync reaches it."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if not program or not shutil.which("rsync"):
        pytest.skip("needs sshd and rsync: apt-get install -y openssh-server rsync")
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    shutil.copy(folder / "key.pub", folder / "authorized")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {"HostKey": folder / "host", "AuthorizedKeysFile": folder / "authorized", "StrictModes": "no"}
    options |= {"ListenAddress": "127.0.0.1", "PidFile": "none", "PermitRootLogin": "yes"}
    flags = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    server = subprocess.Popen([program, "-D", "-f", "/dev/null", "-p", str(port), *flags], stderr=subprocess.DEVNULL)
    try:
        while server.poll() is None:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        assert server.poll() is None, "sshd has ended"
        known = "-o UserKnownHostsFile=/dev/null -o StrictHostKeyChecking=no -o LogLevel=ERROR -o BatchMode=yes"
        known += f" -o ControlMaster=auto -o ControlPath={folder}/shared -o ControlPersist=10"  # one connection for all
        yield f"ssh -F none -p {port} -i {folder / 'key'} {known}"
    finally:
        server.kill()
        server.wait()
