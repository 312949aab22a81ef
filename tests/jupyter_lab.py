"""A real Jupyter Lab for tests, on a free port of this machine, with configuration and data in a temporary folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

START, STOP = 180, 30  # seconds that a busy machine may take to start a server, and to stop it
OPTIONS = (
    "--no-browser",
    "--allow-root",
    "--ServerApp.ip=127.0.0.1",
    "--ServerApp.port_retries=0",
    "--IdentityProvider.token=",
    "--PasswordIdentityProvider.password_required=False",
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--ServerApp.shutdown_no_activity_timeout=900",  # it ends by itself, too, if nobody ends it
    "--MappingKernelManager.cull_idle_timeout=900",
    "--MappingKernelManager.cull_connected=True",
)


def write_notebook(file: Path, cells: Sequence[str]) -> None:
    """Write a notebook of code cells without outputs."""
    made = [
        {"cell_type": "code", "execution_count": None, "id": f"c{at}", "metadata": {}, "outputs": [], "source": cell}
        for at, cell in enumerate(cells)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    file.write_text(json.dumps({"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}))


def free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])


@contextmanager
def running_lab(folder: Path, home: Path) -> Iterator[str]:
    """Run Jupyter Lab on the notebooks in `folder`; gives its address. It and its kernels are ended in every case."""
    places = {"HOME": "", "JUPYTER_CONFIG_DIR": "config", "JUPYTER_DATA_DIR": "data", "JUPYTER_RUNTIME_DIR": "run"}
    places |= {"IPYTHONDIR": "ipython", "XDG_CONFIG_HOME": "xdg", "XDG_CACHE_HOME": "cache", "TMPDIR": "tmp"}
    for name in places.values():
        (home / name).mkdir(parents=True, exist_ok=True)
    settings = home / "config" / "labconfig"
    settings.mkdir(exist_ok=True)
    quiet = {"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}
    (settings / "page_config.json").write_text(json.dumps(quiet))
    env = {**os.environ, **{name: str(home / place) for name, place in places.items()}, "OMP_NUM_THREADS": "1"}
    env["JUPYTERLAB_SETTINGS_DIR"], env["JUPYTERLAB_WORKSPACES_DIR"] = str(home / "settings"), str(home / "workspaces")
    env.pop("PYTEST_CURRENT_TEST", None)
    port = free_port()
    command = [sys.executable, "-m", "jupyterlab", *OPTIONS, f"--ServerApp.port={port}"]
    log = home / "lab.log"
    with open(log, "w") as said:
        server = subprocess.Popen(
            [*command, f"--ServerApp.root_dir={folder}"], env=env, stdout=said, stderr=subprocess.STDOUT, cwd=folder
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(server, f"{url}/api", log)
            yield url
        finally:
            _end(server)


def _wait_for(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    """Wait until a server answers; an error with its log if it ends or does not answer in time."""
    last = time.monotonic() + START
    while server.poll() is None and time.monotonic() < last:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"Jupyter Lab did not answer at {url}:\n{log.read_text()[-3000:]}")


def _end(server: subprocess.Popen[bytes]) -> None:
    """End a server and all of its kernels: by asking first, then by force."""
    try:
        family = psutil.Process(server.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    server.terminate()
    try:
        server.wait(STOP)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
    _, alive = psutil.wait_procs(family, timeout=5)
    for one in alive:
        one.kill()
    psutil.wait_procs(alive, timeout=STOP)
