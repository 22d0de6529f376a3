"""A Slurm of one machine, for the length of a test session: no systemd, no root, no accounting.

Everything is kept in one folder and every port is a free one, so that it disturbs no other Slurm.
Two nodes with GPUs that are links to /dev/null; memory is watched by polling, once a second, and a
step that exceeds what its job asked for is killed.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scancel", "scontrol")
SBIN = "/usr/sbin:/sbin"
NODES = ("node1", "node2")
Daemon = subprocess.Popen[bytes]

CONF = """
ClusterName=fedloom
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket,cred_expire=5
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
GresTypes=gpu
KillWait=20
ReturnToService=2
NodeName=DEFAULT CPUs=8 RealMemory=16000
NodeName=node1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} Gres=gpu:a100:6 Feature=fast
NodeName=node2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
PartitionName=gpu Nodes=node1 MaxTime=60 Default=YES
PartitionName=cpu Nodes=node2 MaxTime=60
"""


def missing() -> list[str]:
    """The programs of Slurm that are not installed."""
    path = f"{os.environ['PATH']}:{SBIN}"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


@dataclass(frozen=True)
class Job:
    """A job of Slurm.

    Attributes:
        restarts: How often Slurm put it back into its queue.
        name: Which job of the plan it is.
    """

    id: str
    state: str
    memory: str
    cpus: int
    gpus: str
    restarts: int
    account: str
    features: str
    name: str


@dataclass(frozen=True)
class Slurm:
    """A running Slurm; ``environment`` is what its commands need."""

    root: Path
    environment: dict[str, str]

    def ask(self, *command: str) -> str:
        """The output of a command of Slurm; it has two minutes."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def jobs(self, folder: Path) -> list[Job]:
        """The jobs that were submitted from a folder, those that are over too, oldest first."""
        said = self.ask("scontrol", "--oneliner", "show", "job")
        found = [dict(re.findall(r"(\w+)=(\S*)", line)) for line in said.splitlines()]
        return [
            Job(
                *(job["JobId"], job["JobState"], job["MinMemoryNode"], int(job["NumCPUs"])),
                gpus=job.get("TresPerJob", ""),
                restarts=int(job["Restarts"]),
                account=job["Account"],
                features=job["Features"],
                name=job["Comment"].rpartition("_")[2],
            )
            for job in sorted(found, key=lambda job: int(job.get("JobId", 0)))
            if job.get("WorkDir") == str(folder)
        ]


@contextlib.contextmanager
def start(root: Path) -> Iterator[Slurm]:
    """Bring the daemons up in ``root``, and take them and their jobs down again."""
    environment = {**os.environ, "PATH": f"{root}/bin:{os.environ['PATH']}:{SBIN}"}
    environment["SLURM_CONF"] = f"{root}/slurm.conf"
    _write(root)
    daemons: list[Daemon] = []
    cluster = Slurm(root, environment)
    try:
        daemons.append(_daemon("munged", _munge(root), environment))
        conf = ["-D", "-f", f"{root}/slurm.conf"]
        daemons.append(_daemon("slurmctld", [*conf, "-c"], environment))
        daemons.extend(_daemon("slurmd", [*conf, "-N", node], environment) for node in NODES)
        _until_idle(cluster, daemons)
        yield cluster
    finally:
        with contextlib.suppress(OSError, subprocess.SubprocessError, AssertionError):
            cluster.ask("scancel", "--full", f"--user={getpass.getuser()}")
            _until_empty(cluster)
        for daemon in reversed(daemons):
            _stop(daemon)


def _write(root: Path) -> None:
    for name in ("state", "bin", *(f"spool-{node}" for node in NODES)):
        (root / name).mkdir(parents=True)
    root.chmod(0o755)
    (root / "munge.key").write_bytes(secrets.token_bytes(128))
    (root / "munge.key").chmod(0o400)
    conf = CONF.format(
        root=root,
        host=socket.gethostname().partition(".")[0],
        user=getpass.getuser(),
        ports=_free_ports(3),
    )
    (root / "slurm.conf").write_text(conf)
    for index in range(6):
        (root / f"gpu{index}").symlink_to("/dev/null")
    (root / "gres.conf").write_text(f"NodeName=node1 Name=gpu Type=a100 File={root}/gpu[0-5]\n")
    # Snakemake's job step plugin forgets SLURM_CONF, so srun is told here where its Slurm is.
    srun = root / "bin" / "srun"
    real = shutil.which("srun")
    srun.write_text(f'#!/bin/sh\nSLURM_CONF="{root}/slurm.conf" exec "{real}" "$@"\n')
    srun.chmod(0o755)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [found.getsockname()[1] for found in sockets]


def _munge(root: Path) -> list[str]:
    """The arguments of a munged that keeps to a folder and to its own key."""
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid"}
    files |= {"log-file": "log", "seed-file": "seed"}
    return ["--foreground", "--force", *(f"--{k}={root}/munge.{v}" for k, v in files.items())]


def _daemon(name: str, arguments: list[str], environment: dict[str, str]) -> Daemon:
    program = shutil.which(name, path=environment["PATH"])
    assert program is not None
    return subprocess.Popen(
        [program, *arguments],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _until_idle(cluster: Slurm, daemons: list[Daemon]) -> None:
    end = time.monotonic() + 120
    said = ""
    while time.monotonic() < end and all(daemon.poll() is None for daemon in daemons):
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            said = cluster.ask("sinfo", "--noheader", "--Node", "--format=%N %T")
            if sorted(said.split()) == ["idle", "idle", *NODES]:
                return
        time.sleep(0.1)
    logs = [f"{p}:\n{p.read_text(errors='replace')}" for p in sorted(cluster.root.glob("*.log"))]
    raise RuntimeError(f"Slurm did not come up; sinfo says {said!r}", *logs)


def _until_empty(cluster: Slurm) -> None:
    end = time.monotonic() + 120
    while cluster.ask("squeue", "--noheader").strip() and time.monotonic() < end:
        time.sleep(0.2)


def _stop(daemon: Daemon) -> None:
    daemon.terminate()
    try:
        daemon.wait(60)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(daemon.pid, signal.SIGKILL)
        daemon.wait(60)
