"""A private PostgreSQL server for tests: real, durable, in a temporary folder, gone afterwards.

with PostgresCluster(find_programs()) as cluster:
    engine = create_engine(cluster.new_database())
    cluster.kill()  # a crash
    cluster.start()  # and the recovery from it
"""

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

import psycopg

from fedprivacy.deploy.federation import free_ports

HOST = "127.0.0.1"
PATIENCE = 60.0  # seconds that a start or a stop may take on a busy machine
SETTINGS = {
    "listen_addresses": HOST,
    "fsync": "on",  # the tests are about what survives: no setting may make a commit cheaper than it is
    "synchronous_commit": "on",
    "shared_buffers": "16MB",
    "max_connections": "60",
    "dynamic_shared_memory_type": "mmap",  # in the folder, so that a crash leaves nothing behind in /dev/shm
}


def find_programs() -> Path | None:
    """The folder of PostgreSQL's server programs: the one on PATH, else Debian's newest, else None."""
    if on_path := shutil.which("initdb"):
        return Path(on_path).resolve().parent
    found = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    return max((path.parent for path in found), key=lambda folder: float(folder.parent.name), default=None)


class PostgresCluster:
    """One PostgreSQL server, reached by everyone on this machine, without a password, at a port of its own.

    The port stays the same over `stop`, `kill` and `start`: an engine made before a crash works after it.
    """

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        (self.port,) = free_ports(1)
        # Not pytest's tmp_path: PostgreSQL's user cannot enter that, and a socket's path has at most 107 bytes.
        self.folder = Path(tempfile.mkdtemp(prefix="fedprivacy-pg-", dir="/tmp"))
        self._server: subprocess.Popen[bytes] | None = None
        self._names = (f"test_{number}" for number in itertools.count())
        try:
            self._create()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the server and wait until it answers; nothing if it runs already."""
        if self.running:
            return
        settings = SETTINGS | {"port": str(self.port), "unix_socket_directories": str(self.folder)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with self._log.open("ab") as log:
            self._server = subprocess.Popen(
                [self.programs / "postgres", "-D", self._data, *options], stdout=log, stderr=log, **self._identity()
            )
        self._wait_until_ready()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Shut the server down, by SIGQUIT without writing anything; nothing if it does not run."""
        if self._server is not None and self.running:
            self._server.send_signal(how)
            self._server.wait(PATIENCE)

    def kill(self) -> None:
        """Crash: SIGKILL for the server and all its processes. The next `start` recovers from its log."""
        if self._server is None or not self.running:
            return
        # The parent first stands still, so that it neither starts another process nor ends in its own way.
        self._server.send_signal(signal.SIGSTOP)
        # The next start refuses while one of them still holds the shared memory, so wait until the last is gone.
        while children := living_children(self._server.pid):
            for child in children:
                kill_if_alive(child)
            time.sleep(0.01)
        self._server.kill()
        self._server.wait(PATIENCE)

    @property
    def running(self) -> bool:
        """Whether the server's process lives."""
        return self._server is not None and self._server.poll() is None

    def new_database(self, like: str | None = None, encoding: str = "UTF8") -> str:
        """A fresh database, as SQLAlchemy's URL; empty, or a copy of another one, to which nobody is connected."""
        name, template = next(self._names), like.rpartition("/")[2] if like else "template0"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} ENCODING '{encoding}'")
        return f"postgresql+psycopg://postgres@{HOST}:{self.port}/{name}"

    def drop_database(self, url: str) -> None:
        """Drop a database of `new_database`, and end whatever connections a test left open to it."""
        self._execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def close(self) -> None:
        """Stop the server, however it stands, and remove its folder."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _create(self) -> None:
        if user := server_user():
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        # Nobody's data is in there yet: the server's own first checkpoint writes it through.
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        command: list[str | Path] = [self.programs / "initdb", "--pgdata", self._data, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._identity())
        if done.returncode:
            raise RuntimeError(f"initdb of {self.programs} failed:\n{done.stdout}{done.stderr}")

    def _identity(self) -> dict[str, Any]:
        """Where and as whom PostgreSQL's programs run; with none of the caller's PG* variables."""
        where = {"cwd": self.folder, "env": {"PATH": os.environ["PATH"], "LC_ALL": "C", "TZ": "UTC"}}
        user = server_user()
        return where | ({"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {})

    def _execute(self, statement: str) -> None:
        with self._connect() as connection:
            connection.execute(statement.encode())

    def _connect(self) -> psycopg.Connection:
        # Outside a transaction: databases cannot be created or dropped in one.
        return psycopg.connect(host=HOST, port=self.port, user="postgres", dbname="postgres", autocommit=True)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._connect().close()
            except psycopg.OperationalError as error:
                if not self.running or time.monotonic() > deadline:
                    log = self._log.read_text(errors="replace")[-4000:]
                    raise RuntimeError(f"PostgreSQL of {self.programs} does not start:\n{log}") from error
            time.sleep(0.02)


def server_user() -> pwd.struct_passwd | None:
    """Whom PostgreSQL runs as where we are root, which it refuses to be; otherwise None: as ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        return pwd.getpwnam("nobody")


def living_children(parent: int) -> list[int]:
    """The processes that `parent` started and that have not ended."""
    listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,stat="], capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listing.splitlines()]
    return [int(pid) for pid, ppid, state in rows if int(ppid) == parent and not state.startswith("Z")]


def kill_if_alive(process: int) -> None:
    """SIGKILL, unless the process has just ended by itself."""
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return
