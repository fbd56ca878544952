"""Real servers for the tests: etcd (one member, or three), PostgreSQL and Redis.

Each listens on the loopback address only, on a port that was free, and keeps its data in a
directory of its own, which is removed at the end.  The kernel kills a server whose test run has
been killed.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import glob
import http.client
import json
import os
import random
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING, NamedTuple

import pytest

import users
from support import state_of, wait_until

if TYPE_CHECKING:
    from collections.abc import Sequence

LOOPBACK = "127.0.0.1"
# A server is ready after a second here.  A busy machine takes longer.
PATIENCE = 60.0
_STARTS = 5
PASSWORD = "s3cret/@:%"  # in an address it must be quoted
# Below the ports that the kernel gives to outgoing connections: one stays free while its server
# is away.
_PORTS = range(20000, 32000)
_random = random.SystemRandom()  # the shared one gives all test processes the same numbers


def free_port() -> int:
    """Give a port that nothing listens on."""
    while True:
        port = _random.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((LOOPBACK, port))
            return port


def program_or_skip(name: str, package: str) -> str:
    """Give the path of a server's program, or skip the test where it is not installed."""
    found = shutil.which(name)
    if found is None:  # Debian's users don't have this one in their path
        found = shutil.which(name, path="/usr/sbin")
    if found is None:  # Debian keeps PostgreSQL's programs out of the path
        found = max(glob.glob(f"/usr/lib/postgresql/*/bin/{name}"), default=None)
    if found is None or not sys.platform.startswith("linux"):
        if os.environ.get("CI") and sys.platform.startswith("linux"):
            pytest.fail(f"{name} is not installed: see .ci/system-packages")
        pytest.skip(f"needs {name}, from Debian's package {package}")
    return found  # not resolved: redis-server is a link to a program that goes by its name


class Certificates(NamedTuple):
    """A certificate authority, and what it has signed for the server and for a client."""

    ca: str
    server: str
    server_key: str
    client: str
    client_key: str


def make_certificates(directory: str) -> Certificates:
    """Make keys and certificates that are valid for a day."""
    openssl = program_or_skip("openssl", "openssl")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=directory, check=True, capture_output=True)

    def key(name: str) -> list[str]:
        return [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            f"{name}.key",
        ]

    run(
        "req",
        "-x509",
        *key("ca"),
        "-out",
        "ca.crt",
        "-days",
        "1",
        "-subj",
        "/CN=the tests' authority",
    )
    with open(f"{directory}/names", "w") as file:
        file.write(f"subjectAltName=IP:{LOOPBACK},DNS:localhost\n")
    for name, subject in (("server", "/CN=localhost"), ("client", "/CN=root")):
        run("req", "-new", *key(name), "-out", f"{name}.csr", "-subj", subject)
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "1", "-extfile", "names",
            "-out", f"{name}.crt")  # fmt: skip
    for name in os.listdir(directory):
        os.chmod(f"{directory}/{name}", 0o644)
    names = ("ca.crt", "server.crt", "server.key", "client.crt", "client.key")
    return Certificates(*(f"{directory}/{name}" for name in names))


class Server:
    """One server: a process that can be started, stopped, paused, killed and started again."""

    program = package = ""
    # How it is asked to end, and what ends it at once.  By name: Windows has not all of them.
    stop_signal, kill_signal = "TERM", "KILL"

    def __init__(self, directory: str, *, host: str = LOOPBACK) -> None:
        self.path = program_or_skip(self.program, self.package)
        self.directory = directory
        self.host = host
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens: host and port."""
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        """The number of its process."""
        assert self.process is not None
        return self.process.pid

    def words(self) -> list[str]:
        """Give the words of its command."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Tell whether it answers."""
        raise NotImplementedError

    def user(self) -> int | None:
        """Give the number of the user that it is to run as, if it isn't this one."""
        return None

    def as_user(self) -> list[str]:
        """Give the words that run a command as that user."""
        if (user := self.user()) is None:
            return []
        return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]

    def begin(self) -> None:
        """Start it, and do not wait for it."""
        assert self.process is None or self.process.poll() is not None
        # The kernel ends it with the tests' process, however that ends.
        wrapper = [*self.as_user(), "setpriv", f"--pdeathsig={self.kill_signal}"]
        with open(f"{self.directory}/log", "ab") as log:
            self.process = subprocess.Popen(
                [*wrapper, *self.words()], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                cwd=self.directory,
            )  # fmt: skip

    def wait_ready(self) -> None:
        """Wait until it answers; ``RuntimeError`` with its log if it ends."""

        def ready() -> bool:
            assert self.process is not None
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.program} has ended:\n{self.log()[-3000:]}")
            return self.is_ready()

        wait_until(ready, f"{self.program} answers on port {self.port}", PATIENCE)

    def start(self) -> Server:
        """Start it and wait until it answers."""
        self.begin()
        self.wait_ready()
        return self

    def log(self) -> str:
        """Give what it has written."""
        with open(f"{self.directory}/log", encoding="utf-8", errors="replace") as file:
            return file.read()

    def stop(self) -> None:
        """End it as an administrator does."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End it as a power failure does, except that what it wrote is there."""
        self._end("KILL")

    def _end(self, name: str) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.Signals[f"SIG{name}"])
            self.process.send_signal(signal.SIGCONT)  # it may be paused
        try:
            self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def pause(self) -> None:
        """Stop it with SIGSTOP: connections stay, and nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)
        wait_until(lambda: state_of(self.pid) == "T", f"{self.program} is stopped")

    def resume(self) -> None:
        """Let it go on after ``pause``."""
        self.process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Start it again with the data that it had, after ``stop`` or ``kill``."""
        self.start()

    def close(self) -> None:
        """End it at once."""
        self._end(self.kill_signal)


def _first_start(make, directory: str):
    """Start a server that was just made; another process may have taken its port meanwhile."""
    for number in range(_STARTS):
        place = f"{directory}/{number}"
        os.mkdir(place)
        server = make(place)
        try:
            return server.start()
        except RuntimeError:
            server.close()
            if number == _STARTS - 1:
                raise
        except BaseException:
            server.close()
            raise
    raise AssertionError


class Etcd(Server):
    """One member of an etcd."""

    program, package = "etcd", "etcd-server"

    def __init__(
        self,
        directory: str,
        certificates: Certificates | None = None,
        *,
        name: str = "alone",
        client_certificates: bool = False,
        more: Sequence[str] = (),
        host: str = LOOPBACK,
    ) -> None:
        super().__init__(directory, host=host)
        self.more = more  # words of its command
        self.name = name
        self.certificates = certificates
        self.client_certificates = client_certificates
        self.peer_port = free_port()
        self.peers = f"{name}=http://{LOOPBACK}:{self.peer_port}"
        self.authorization = ""

    @property
    def scheme(self) -> str:
        """Give the scheme of its addresses."""
        return "https" if self.certificates else "http"

    def words(self) -> list[str]:
        here, peer = f"{self.scheme}://{self.address}", f"http://{LOOPBACK}:{self.peer_port}"
        words = [
            self.path, "--name", self.name, "--data-dir", f"{self.directory}/data",
            "--listen-client-urls", here, "--advertise-client-urls", here,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", self.peers,
            "--heartbeat-interval", "50", "--election-timeout", "500",
            "--logger", "zap", "--log-outputs", "stderr", "--log-level", "warn",
        ]  # fmt: skip
        if self.certificates:
            words += [
                "--cert-file",
                self.certificates.server,
                "--key-file",
                self.certificates.server_key,
            ]
        if self.client_certificates:
            words += ["--client-cert-auth", "--trusted-ca-file", self.certificates.ca]
        return [*words, *self.more]

    @functools.cached_property
    def _tls(self) -> ssl.SSLContext | None:
        if self.certificates is None:
            return None
        context = ssl.create_default_context(cafile=self.certificates.ca)
        context.load_cert_chain(self.certificates.client, self.certificates.client_key)
        return context

    def call(self, path: str, timeout: float = 5.0, **fields: object) -> dict[str, object]:
        """Send one request to the JSON gateway, as the tests' own client."""
        if self._tls:
            connection = http.client.HTTPSConnection(
                self.address, timeout=timeout, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection(self.address, timeout=timeout)
        headers = {"Authorization": self.authorization} if self.authorization else {}
        with contextlib.closing(connection):
            connection.request("POST", f"/v3/{path}", json.dumps(fields), headers)
            answer = connection.getresponse()
            body = json.loads(answer.read())
        if answer.status != 200:
            raise OSError(f"{path}: {answer.status} {body}")
        return body

    def keys(self) -> dict[bytes, bytes]:
        """Give all that is stored."""
        answer = self.call("kv/range", key="AA==", range_end="AA==")
        decode = base64.b64decode
        return {decode(kv["key"]): decode(kv.get("value", "")) for kv in answer.get("kvs", ())}

    def is_ready(self) -> bool:
        try:
            # A read that a majority confirms: a member that answers alone may have no leader yet.
            self.call("kv/range", key="AA==", timeout=1.0)
        except OSError as error:
            return "403" in str(error) or "user name" in str(error)  # it wants a password
        except (http.client.HTTPException, ValueError):
            return False
        return True

    def member(self) -> int:
        """Give the number of this member."""
        return int(self.call("maintenance/status")["header"]["member_id"])

    def leader(self) -> int:
        """Give the number of the member that leads, as this one knows; 0 if none."""
        return int(self.call("maintenance/status").get("leader", 0))

    def want_password(self) -> None:
        """Let only the user root in, by the tests' password."""
        self.call("auth/user/add", name="root", password=PASSWORD)
        self.call("auth/user/grant", user="root", role="root")
        self.call("auth/enable")
        self.authorization = self.call("auth/authenticate", name="root", password=PASSWORD)[
            "token"
        ]


class EtcdCluster:
    """Three members of one etcd."""

    def __init__(self, directory: str) -> None:
        self.members = []
        for name in ("one", "two", "three"):
            os.mkdir(f"{directory}/{name}")
            self.members.append(Etcd(f"{directory}/{name}", name=name))
        peers = ",".join(member.peers for member in self.members)
        for member in self.members:
            member.peers = peers

    @property
    def address(self) -> str:
        """Give the addresses of all members, as a URL has them."""
        return ",".join(member.address for member in self.members)

    def start(self) -> EtcdCluster:
        """Start all members, and wait until each answers."""
        try:
            for member in self.members:
                member.begin()
            for member in self.members:
                member.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def leader(self) -> Etcd:
        """Find the member that leads now."""
        found: list[Etcd] = []

        def known() -> bool:
            for member in self.members:
                with contextlib.suppress(OSError, http.client.HTTPException, KeyError):
                    if member.member() == member.leader():
                        found.append(member)
            return bool(found)

        wait_until(known, "etcd has a leader", PATIENCE)
        return found[0]

    def mend(self) -> None:
        """Start again the members that have ended."""
        for member in self.members:
            if member.process.poll() is not None:
                member.begin()
        for member in self.members:
            member.resume()
            member.wait_ready()

    def close(self) -> None:
        """End all members at once."""
        for member in self.members:
            member.close()


class PostgreSQL(Server):
    """A PostgreSQL of its own, which refuses to run as root, so another user runs it then."""

    program, package = "postgres", "postgresql"
    # Fast, and at the end immediately: SIGKILL would leave its shared memory behind.
    stop_signal, kill_signal = "INT", "QUIT"
    NAME = "semlock"

    def __init__(
        self,
        directory: str,
        certificates: Certificates | None = None,
        *,
        settings: dict[str, str] | None = None,
        host: str = LOOPBACK,
    ) -> None:
        super().__init__(directory, host=host)
        self.certificates = certificates
        self.data = f"{directory}/data"
        self.programs = os.path.dirname(os.path.realpath(self.path))
        # What it has written need not survive a power failure, only a killed server.
        self.settings = {"fsync": "off", "max_connections": "300", **(settings or {})}
        self._make()

    def user(self) -> int | None:
        return users.NOBODY if users.ROOT else None

    def _make(self) -> None:
        with open(f"{self.directory}/password", "w") as file:
            file.write(PASSWORD)
        for name in (self.directory, f"{self.directory}/password"):
            if (user := self.user()) is not None:
                os.chown(name, user, user)
        words = [
            f"{self.programs}/initdb", "-D", self.data, "-U", self.NAME, "-A", "scram-sha-256",
            "--pwfile", f"{self.directory}/password", "-E", "UTF8", "--locale=C", "--no-sync",
        ]  # fmt: skip
        done = subprocess.run(
            [*self.as_user(), *words], capture_output=True, text=True, cwd=self.directory,
            stdin=subprocess.DEVNULL, timeout=PATIENCE, check=False,
        )  # fmt: skip
        if done.returncode:
            raise OSError(f"initdb failed: {done.stderr}")
        with open(f"{self.data}/pg_hba.conf", "a") as file:
            file.write(f"host all all {self.host}/24 scram-sha-256\n")
        if self.certificates:
            # It reads a key only if no other user can.
            for source, name in (
                (self.certificates.server, "server.crt"),
                (self.certificates.server_key, "server.key"),
            ):
                target = shutil.copy(source, f"{self.data}/{name}")
                os.chmod(target, 0o600)
                if (user := self.user()) is not None:
                    os.chown(target, user, user)
            self.settings |= {
                "ssl": "on",
                "ssl_cert_file": "server.crt",
                "ssl_key_file": "server.key",
            }

    def words(self) -> list[str]:
        words = [self.path, "-D", self.data, "-p", str(self.port), "-h", self.host, "-k", ""]
        for name, value in self.settings.items():
            words += ["-c", f"{name}={value}"]
        return words

    def start(self) -> Server:
        """Start it; after a kill its last processes may still be ending, on a busy machine."""
        end = time.monotonic() + PATIENCE
        while True:
            before = len(self.log()) if self.process else 0
            try:
                return super().start()
            except RuntimeError:
                busy = "pre-existing shared memory" in self.log()[before:]
                if not busy or time.monotonic() > end:
                    raise
            time.sleep(0.1)

    def follower(self, directory: str) -> PostgreSQL:
        """Start a hot standby of it."""
        words = [
            f"{self.programs}/pg_basebackup", "-D", f"{directory}/data", "-R", "--no-sync",
            "--checkpoint=fast", "-d", f"host={LOOPBACK} port={self.port} user={self.NAME}",
        ]  # fmt: skip
        if (user := self.user()) is not None:
            os.chown(directory, user, user)
        subprocess.run(
            [*self.as_user(), *words], check=True, capture_output=True, timeout=PATIENCE,
            env={**os.environ, "PGPASSWORD": PASSWORD}, cwd=directory,
        )  # fmt: skip
        follower = copy.copy(self)
        follower.directory, follower.data = directory, f"{directory}/data"
        follower.port, follower.process = free_port(), None
        return follower.start()

    def is_ready(self) -> bool:
        tool = f"{self.programs}/pg_isready"
        done = subprocess.run(
            [tool, "-q", "-h", self.host, "-p", str(self.port)], timeout=PATIENCE, check=False
        )
        return done.returncode == 0


class PgBouncer(Server):
    """A pooler before a PostgreSQL; it refuses to run as root too."""

    program, package = "pgbouncer", "pgbouncer"
    stop_signal, kill_signal = "INT", "KILL"
    NAME = PostgreSQL.NAME

    def __init__(self, directory: str, behind: PostgreSQL, *, mode: str) -> None:
        super().__init__(directory)
        lines = [
            "[databases]",
            f"postgres = host={LOOPBACK} port={behind.port} user={self.NAME} password='{PASSWORD}'",
            "[pgbouncer]",
            f"listen_addr = {LOOPBACK}",
            f"listen_port = {self.port}",
            "unix_socket_dir =",
            "auth_type = any",
            f"pool_mode = {mode}",
        ]
        with open(f"{directory}/config", "w") as file:
            file.write("\n".join(lines) + "\n")
        os.chmod(f"{directory}/config", 0o644)

    def user(self) -> int | None:
        return users.NOBODY if users.ROOT else None

    def words(self) -> list[str]:
        return [self.path, f"{self.directory}/config"]

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, self.port), 1.0):
            return True
        return False


class Redis(Server):
    """A Redis, or a Valkey."""

    program, package = "redis-server", "redis-server"

    def __init__(
        self,
        directory: str,
        certificates: Certificates | None = None,
        *,
        password: str | None = None,
        settings: dict[str, str] | None = None,
        host: str = LOOPBACK,
    ) -> None:
        super().__init__(directory, host=host)
        self.certificates = certificates
        self.settings = {
            "save": "",
            "appendonly": "yes",
            "appendfsync": "no",
            "protected-mode": "no",  # what is no loopback address here is this machine's too
            **(settings or {}),
        }
        if password:
            self.settings["requirepass"] = password

    def words(self) -> list[str]:
        words = [self.path, "--bind", self.host, "--dir", self.directory, "--daemonize", "no"]
        if self.certificates:
            words += [
                "--port", "0", "--tls-port", str(self.port), "--tls-auth-clients", "optional",
                "--tls-ca-cert-file", self.certificates.ca,
                "--tls-cert-file", self.certificates.server,
                "--tls-key-file", self.certificates.server_key,
            ]  # fmt: skip
        else:
            words += ["--port", str(self.port)]
        for name, value in self.settings.items():
            words += [f"--{name}", value]
        return words

    def command(self, words: str) -> bytes:
        """Send it one command, and give the beginning of the answer."""
        with socket.create_connection((LOOPBACK, self.port), 5) as stream:
            stream.sendall(words.encode() + b"\r\n")
            return stream.recv(10_000)

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stream = stack.enter_context(socket.create_connection((self.host, self.port), 1.0))
            if self.certificates:
                context = ssl.create_default_context(cafile=self.certificates.ca)
                stream = stack.enter_context(
                    context.wrap_socket(stream, server_hostname=LOOPBACK)
                )
            stream.sendall(b"PING\r\n")
            # While it reads its file it says LOADING.
            return stream.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False


@contextlib.contextmanager
def directory_for(name: str):
    """Make a directory for a server, which another user can reach."""
    with tempfile.TemporaryDirectory(prefix=f"semlock-{name}-", dir=users_place()) as directory:
        os.chmod(directory, 0o755)
        yield directory


def users_place() -> str:
    """Say below which directory all users can have theirs."""
    place = tempfile.gettempdir()
    return place if users._open_to_all(f"{place}/name") else "/tmp"


@contextlib.contextmanager
def running(kind, *arguments, **options):
    """Run one server of a kind: ``with running(Etcd) as server``."""
    if kind is not EtcdCluster:
        program_or_skip(kind.program, kind.package)
    else:
        program_or_skip(Etcd.program, Etcd.package)
    with directory_for(kind.__name__.lower()) as directory:
        if kind is EtcdCluster:
            server = _first_start(kind, directory)
        else:
            server = _first_start(lambda place: kind(place, *arguments, **options), directory)
        try:
            yield server
        finally:
            server.close()


@pytest.fixture(scope="session")
def etcd_server():
    """One etcd for all tests of this process; each uses names of its own."""
    with running(Etcd) as server:
        yield server


@pytest.fixture(scope="module")
def etcd_cluster():
    """An etcd of three members, which is never idle; a test mends what it has broken."""
    with running(EtcdCluster) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def postgresql_server():
    """One PostgreSQL for all tests of this process."""
    with running(PostgreSQL) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server():
    """One Redis for all tests of this process."""
    with running(Redis) as server:
        yield server


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """Give keys and certificates for servers and clients."""
    with directory_for("keys") as directory:
        yield make_certificates(directory)
