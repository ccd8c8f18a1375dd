"""Munge, MariaDB and slurmdbd, each with data, sockets and ports of the sandbox's own."""

from __future__ import annotations

import secrets
import shutil
import socket
import subprocess

from cluster import daemons
from cluster.settings import (
    CLUSTER,
    CONTROLLER,
    CONTROLLER_ADDRESS,
    ETC,
    JWT_KEY,
    LOGS,
    MARIADB_DATA,
    MARIADB_PORT,
    MARIADB_SOCKET,
    MUNGE_SOCKET,
    RUN,
    SLURMDBD_PORT,
    SLURMRESTD,
    USERS,
)
from cluster.system import SandboxError, attempt, make_directory, write_file

MUNGE_KEY = ETC / "munge" / "munge.key"
DATABASE = "slurm_acct_sandbox"


def require_free_port(name: str, address: str, port: int) -> None:
    """Refuse to start a daemon whose port somebody else holds."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as problem:
            raise SandboxError(
                f"port {port} on {address or 'this machine'}, for {name}, is not free: {problem.strerror}",
                f"see who holds it with `ss -ltnp | grep {port}`, or change the ports in cluster/settings.py",
            ) from None


def answers(address: str, port: int) -> bool:
    """Whether something accepts connections there."""
    try:
        with socket.create_connection((address, port), timeout=1):
            return True
    except OSError:
        return False


def start_munge() -> None:
    """Start munged with our own key and socket."""
    if daemons.pid_of("munged") is not None:
        return
    make_directory(MUNGE_KEY.parent, mode=0o700, owner="munge")
    make_directory(LOGS / "munge", mode=0o750, owner="munge")
    make_directory(MUNGE_SOCKET.parent, owner="munge")
    if not MUNGE_KEY.exists():
        write_file(MUNGE_KEY, secrets.token_hex(64), mode=0o400, owner="munge")
    daemons.start(
        "munged",
        (
            *("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups"),
            *("munged", "--foreground", "--force", f"--socket={MUNGE_SOCKET}", f"--key-file={MUNGE_KEY}"),
            *(f"--pid-file={MUNGE_SOCKET.parent}/munged.pid", f"--seed-file={LOGS}/munge/seed"),
            f"--log-file={LOGS}/munge/munged.log",
        ),
    )
    daemons.wait_for("munged", MUNGE_SOCKET.is_socket)


def prepare_mariadb() -> subprocess.Popen[bytes] | None:
    """Begin to make an empty data folder; returns the process to wait for, None when the folder is there."""
    if (MARIADB_DATA / "mysql").is_dir():
        return None
    shutil.rmtree(MARIADB_DATA, ignore_errors=True)
    make_directory(MARIADB_DATA, mode=0o750, owner="mysql")
    with (LOGS / "mariadb-install.out").open("wb") as output:
        return subprocess.Popen(
            (
                *("mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={MARIADB_DATA}"),
                *("--auth-root-authentication-method=socket", "--skip-test-db", "--skip-name-resolve"),
                *("--innodb-buffer-pool-size=32M", "--innodb-log-file-size=16M"),
            ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )


def start_mariadb(preparation: subprocess.Popen[bytes] | None) -> None:
    """Start MariaDB on 127.0.0.1, with a database and a password for slurmdbd."""
    if daemons.pid_of("mariadb") is not None:
        return
    if preparation is not None and preparation.wait(timeout=120) != 0:
        raise SandboxError(
            f"mariadb-install-db failed: {daemons.last_words('mariadb-install')}",
            f"read {LOGS}/mariadb-install.out, then `sandbox down` and `sandbox up`",
        )
    require_free_port("mariadb", "127.0.0.1", MARIADB_PORT)
    make_directory(MARIADB_SOCKET.parent, owner="mysql")
    account = f"'slurm'@'127.0.0.1' IDENTIFIED BY '{database_password()}'"
    write_file(
        ETC / "mariadb-init.sql",
        f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
        f"CREATE OR REPLACE USER {account};\n"
        f"GRANT ALL ON {DATABASE}.* TO 'slurm'@'127.0.0.1';\n",
        mode=0o600,
        owner="mysql",
    )
    daemons.start(
        "mariadb",
        (
            *("mariadbd", "--no-defaults", "--user=mysql", f"--datadir={MARIADB_DATA}"),
            *(f"--socket={MARIADB_SOCKET}", f"--port={MARIADB_PORT}", "--bind-address=127.0.0.1"),
            *(f"--pid-file={MARIADB_SOCKET.parent}/mariadb.pid", f"--init-file={ETC}/mariadb-init.sql"),
            *("--skip-log-bin", "--performance-schema=OFF", "--skip-name-resolve"),
            *("--max-allowed-packet=64M", "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=64M"),
            *("--innodb-lock-wait-timeout=900", "--innodb-flush-log-at-trx-commit=2"),
            "--innodb-doublewrite=OFF",
        ),
    )
    daemons.wait_for("mariadb", lambda: answers("127.0.0.1", MARIADB_PORT), timeout_s=60)


def database_password() -> str:
    """The password of slurmdbd's database user, made once."""
    path = ETC / "mariadb.password"
    if not path.exists():
        write_file(path, secrets.token_hex(16), mode=0o600)
    return path.read_text(encoding="ascii")


def alternative_auth() -> str:
    """What lets slurmrestd's users show who they are; "" where there is no slurmrestd."""
    return f"AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={JWT_KEY}\n" if SLURMRESTD.exists() else ""


def start_slurmdbd() -> None:
    """Start slurmdbd as the user slurm, under the controller's host name."""
    if daemons.pid_of("slurmdbd") is not None:
        return
    require_free_port("slurmdbd", "", SLURMDBD_PORT)
    make_directory(RUN / "slurm", owner="slurm")
    make_directory(LOGS / "slurm", owner="slurm")
    lines = (
        f"AuthType=auth/munge\nAuthInfo=socket={MUNGE_SOCKET}\n{alternative_auth()}"
        f"DbdHost={CONTROLLER}\nDbdAddr={CONTROLLER_ADDRESS}\nDbdPort={SLURMDBD_PORT}\nSlurmUser=slurm\n"
        f"LogFile={LOGS}/slurm/slurmdbd.log\nPidFile={RUN}/slurm/slurmdbd.pid\nDebugLevel=info\n"
        f"StorageType=accounting_storage/mysql\nStorageHost=127.0.0.1\nStoragePort={MARIADB_PORT}\n"
        f"StorageUser=slurm\nStoragePass={database_password()}\nStorageLoc={DATABASE}\n"
    )
    write_file(ETC / "slurmdbd.conf", lines, mode=0o600, owner="slurm")
    daemons.start("slurmdbd", as_controller("slurmdbd", "-D"))
    daemons.wait_for(
        "slurmdbd",
        lambda: answers(CONTROLLER_ADDRESS, SLURMDBD_PORT),
        timeout_s=60,
        log=LOGS / "slurm" / "slurmdbd.log",
    )


def as_controller(*argv: str) -> tuple[str, ...]:
    """The command line that runs a daemon under the controller's host name."""
    return ("unshare", "--uts", "--", "sh", "-ec", f'hostname {CONTROLLER}; exec "$0" "$@"', *argv)


def register() -> None:
    """Tell the accounting about the cluster, the accounts and the users; again is fine."""
    _, out, _ = attempt(("sacctmgr", "-nP", "show", "association", f"cluster={CLUSTER}", "format=user"))
    known = set(out.split())
    users = [user for user in USERS if user.account is not None and user.name not in known]
    if not users:
        return
    sacctmgr("add", "cluster", CLUSTER)
    sacctmgr("add", "account", ",".join(str(user.account) for user in users), f"cluster={CLUSTER}")
    for user in users:
        sacctmgr("add", "user", user.name, f"account={user.account}", f"adminlevel={user.admin_level}")


def sacctmgr(*words: str) -> None:
    """Run one change of the accounting; what is there already is not an error."""
    status, out, err = attempt(("sacctmgr", "-i", *words))
    if status != 0 and "Nothing new added" not in out + err and "already exist" not in out + err:
        raise SandboxError(
            f"sacctmgr {' '.join(words)}: {(err or out).strip()}",
            f"read {LOGS}/slurm/slurmdbd.log, then run `sandbox up` again",
        )
