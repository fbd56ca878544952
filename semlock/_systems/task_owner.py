"""Owners of task locks: the holder's name, its environment, purpose and time to live.

The environment is found out: a system for continuous integration, a container, or neither.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping

from semlock._core.errors import LockRecordError
from semlock._core.identity import this_process
from semlock._core.records import PID_LIMIT
from semlock._systems.task_records import (
    ENVIRONMENTS,
    OWNER_FIELDS,
    OWNER_LIMIT,
    PURPOSES,
    characters,
    checked_metadata,
    checked_owner,
    digest,
    shown_owner,
    without_token,
)

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from typing import Any, Literal, TypeAlias

    Kind: TypeAlias = Literal["pid", "user", "token", "ci", "other"]
    Environment: TypeAlias = Literal["local", "ci", "cloud", "container"]
    Purpose: TypeAlias = Literal["interactive", "automated", "emergency"]


# A system, the variable that shows it, and the variables that name the run, the narrowest first,
# so that two jobs of one pipeline are two owners if the system tells them apart.  The first two
# are the specification's own and take precedence, as others run on top of them.
_SYSTEMS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("", "CI_SYSTEM", ("CI_RUN_ID",)),
    ("", "CI_RUN_ID", ("CI_RUN_ID",)),
    ("github", "GITHUB_ACTIONS", ("GITHUB_RUN_ID",)),
    ("gitlab", "GITLAB_CI", ("CI_JOB_ID", "CI_PIPELINE_ID")),
    ("circleci", "CIRCLECI", ("CIRCLE_WORKFLOW_JOB_ID", "CIRCLE_BUILD_NUM", "CIRCLE_WORKFLOW_ID")),
    ("travis", "TRAVIS", ("TRAVIS_JOB_ID", "TRAVIS_BUILD_ID")),
    ("azure", "TF_BUILD", ("SYSTEM_JOBID", "BUILD_BUILDID")),
    ("buildkite", "BUILDKITE", ("BUILDKITE_JOB_ID", "BUILDKITE_BUILD_ID")),
    ("bitbucket", "BITBUCKET_BUILD_NUMBER", ("BITBUCKET_STEP_UUID", "BITBUCKET_BUILD_NUMBER")),
    ("drone", "DRONE", ("DRONE_BUILD_NUMBER",)),
    ("appveyor", "APPVEYOR", ("APPVEYOR_JOB_ID", "APPVEYOR_BUILD_ID")),
    ("codebuild", "CODEBUILD_BUILD_ID", ("CODEBUILD_BUILD_ID",)),
    ("teamcity", "TEAMCITY_VERSION", ("BUILD_NUMBER",)),
    ("jenkins", "JENKINS_URL", ("BUILD_TAG", "BUILD_URL", "BUILD_ID")),
    ("unknown-ci", "CI", ()),
)  # fmt: skip

_OFF = ("", "0", "false", "no", "off")

_CONTAINER_MARKS = ("/.dockerenv", "/run/.containerenv")
_CONTROL_GROUPS = ("/proc/self/cgroup", "/proc/1/cgroup")
_CONTAINER_GROUP = re.compile(r"docker|kubepods|containerd|libpod|podman|crio|lxc")


def detect_ci(environ: Mapping[str, str]) -> tuple[str, str | None] | None:
    """Name the system for continuous integration and its run, as far as they are known."""
    for name, mark, runs in _SYSTEMS:
        if environ.get(mark, "").strip().lower() in _OFF:
            continue
        found = (environ[variable] for variable in runs if environ.get(variable))
        return name or environ.get("CI_SYSTEM") or "unknown-ci", next(found, None)
    return None


def in_container(environ: Mapping[str, str], root: str = "") -> bool:
    """Tell whether this process runs in a container, by files that containers have."""
    if environ.get("KUBERNETES_SERVICE_HOST") or environ.get("container"):
        return True
    if any(os.path.exists(root + mark) for mark in _CONTAINER_MARKS):
        return True
    return any(_CONTAINER_GROUP.search(_read(root + file)) for file in _CONTROL_GROUPS)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(65536)
    except OSError:
        return ""  # missing or not readable: no evidence


def detect_environment(
    environ: Mapping[str, str], root: str = ""
) -> Literal["local", "ci", "container"]:
    """Name the environment of this process; a CI job in a container counts as CI."""
    if detect_ci(environ) is not None:
        return "ci"
    return "container" if in_container(environ, root) else "local"


_KINDS: tuple[Kind, ...] = ("pid", "user", "token", "ci")

_ENVIRONMENT_OF: dict[str, Environment] = {"token": "cloud", "ci": "ci"}
_PURPOSE_OF: dict[str, Purpose] = {"ci": "automated"}

# Emergencies are short in every environment; the table has them only for local owners.
_EMERGENCY = 300.0
TTL: dict[str, dict[str, float]] = {
    "local": {"interactive": 3600, "automated": 1800, "emergency": _EMERGENCY},
    "ci": {"automated": 86400, "interactive": 3600},
    "cloud": {"interactive": 7200, "automated": 14400},
    "container": {"interactive": 1800, "automated": 3600},
}


# A longer time to live is refreshed as if it were this long, so that no clock overflows.
_LONGEST_TTL = 30 * 86400.0


def ttl_for(environment: Environment, purpose: Purpose) -> float:
    """Give the time to live, in seconds, for an environment and purpose."""
    if environment not in ENVIRONMENTS:
        raise ValueError(
            f"environment is one of {', '.join(ENVIRONMENTS)}, not {environment!r:.60}"
        )
    if purpose not in PURPOSES:
        raise ValueError(f"purpose is one of {', '.join(PURPOSES)}, not {purpose!r:.60}")
    return TTL[environment].get(purpose, _EMERGENCY)


def refresh_interval(ttl: float) -> float:
    """Give the seconds between two refreshes: three quarters of the time to live."""
    return max(int(min(ttl, _LONGEST_TTL) * 750), 1) / 1000


def kind_of(owner: str) -> Kind:
    """Give the kind of an owner, by its prefix."""
    for kind in _KINDS:
        if owner.startswith(f"{kind}-"):
            return kind
    return "other"


class LockOwner:
    """An owner of a lock: its text, and more about it.

    ``owner`` is one of ``pid-N@host``, ``user-ID@session-SID``, ``token-…``,
    ``ci-SYSTEM-RUN`` or any other text of up to 256 characters.  A token is replaced by its
    digest.  ``metadata`` may have the fields ``hostname``, ``process_id``, ``user_identity``,
    ``session_id``, ``environment`` and ``purpose``; it always has the last two.
    """

    __slots__ = ("_items", "owner")

    def __init__(self, owner: str, metadata: Mapping[str, Any] | None = None) -> None:
        self.owner = _checked(owner)
        kind = self.kind
        try:
            known = dict(metadata or {})
        except (TypeError, ValueError):
            raise LockRecordError(f"metadata is an object, not {metadata!r:.60}") from None
        known.setdefault("environment", _ENVIRONMENT_OF.get(kind, "local"))
        known.setdefault("purpose", _PURPOSE_OF.get(kind, "interactive"))
        checked_metadata(known, OWNER_FIELDS)
        if "process_id" in known:
            known["process_id"] = int(known["process_id"])
        for text in (self.owner, *known.values()):
            _refuse_surrogates(text)
        self._items = tuple((field, known[field]) for field in OWNER_FIELDS if field in known)

    @property
    def metadata(self) -> dict[str, Any]:
        """The fields about the owner, in the order in which they are written."""
        return dict(self._items)

    @property
    def kind(self) -> Kind:
        """The kind of the owner: ``pid``, ``user``, ``token``, ``ci`` or ``other``."""
        return kind_of(self.owner)

    @property
    def environment(self) -> Environment:
        """Where the owner runs."""
        environment: Environment = self.metadata["environment"]
        return environment

    @property
    def purpose(self) -> Purpose:
        """What the lock is for."""
        purpose: Purpose = self.metadata["purpose"]
        return purpose

    def replace(
        self, *, environment: Environment | None = None, purpose: Purpose | None = None
    ) -> LockOwner:
        """Give a copy with another environment or purpose."""
        if environment is None and purpose is None:
            return self  # nothing changes an owner
        changed = {"environment": environment, "purpose": purpose}
        given = {field: value for field, value in changed.items() if value is not None}
        return LockOwner(self.owner, {**self.metadata, **given})

    @classmethod
    def of(cls, owner: LockOwner | str | Mapping[str, Any]) -> LockOwner:
        """Make an owner of its text, or of the specification's object.

        The object is ``{"owner": text, "metadata": {...}}``; other members are ignored.
        """
        if isinstance(owner, LockOwner):
            return owner
        if not isinstance(owner, Mapping):
            return cls.from_string(owner)
        if "owner" not in owner:
            raise LockRecordError(
                'an owner is a LockOwner, a text, or an object such as {"owner": "ci-build-7", '
                f'"metadata": {{"environment": "ci"}}}}, not {owner!r:.60}'
            )
        metadata = owner.get("metadata")
        return cls(owner["owner"], metadata) if metadata else cls.from_string(owner["owner"])

    @classmethod
    def from_string(cls, owner: str) -> LockOwner:
        """Make an owner of its text, and derive the metadata from it."""
        owner = _checked(owner)
        metadata: dict[str, Any] = {}
        kind = kind_of(owner)
        name = owner.removeprefix(f"{kind}-")
        if kind == "pid":
            pid, at, host = name.partition("@")
            if (
                at
                and host
                and pid.isascii()
                and pid.isdigit()
                and len(pid) <= len(str(PID_LIMIT))
            ):
                metadata["hostname"] = host
                if 1 <= int(pid) <= PID_LIMIT:
                    metadata["process_id"] = int(pid)
        elif kind == "user":
            user, at, session = name.rpartition("@session-")
            if at and user and session:
                metadata.update(user_identity=user, session_id=session)
        return cls(owner, metadata)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LockOwner):
            return NotImplemented
        return (self.owner, self._items) == (other.owner, other._items)

    def __hash__(self) -> int:
        return hash((self.owner, self._items))

    def __reduce__(self) -> tuple[Any, ...]:
        return LockOwner, (self.owner, self.metadata)

    def __repr__(self) -> str:
        return f"LockOwner({shown_owner(self.owner)!r}, {self.metadata!r})"


def _checked(owner: object) -> str:
    # A token may have any length, since the owner contains only its digest.
    return checked_owner(without_token(owner) if isinstance(owner, str) else owner)


def _refuse_surrogates(text: object) -> None:
    if isinstance(text, str):
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise LockRecordError(f"{text!r:.60} can't be written as UTF-8: {error}") from None


def owner_for(
    *,
    kind: Kind | None = None,
    user: str | None = None,
    session: str | None = None,
    token: str | None = None,
    environment: Environment | None = None,
    purpose: Purpose | None = None,
    environ: Mapping[str, str] | None = None,
) -> LockOwner:
    """Make the owner of this process's task locks.

    With ``token`` the owner is ``token-`` and its digest; with ``user`` or ``session``, that user
    in that session, and what is not given is found out; in continuous integration, its run; else
    this process.  ``kind`` selects one of them.
    """
    variables = os.environ if environ is None else environ
    if not isinstance(variables, Mapping):
        raise TypeError(f"environ is a mapping of variables, not {environ!r:.60}")
    given = {"user": user, "session": session, "token": token}
    for name, text in given.items():
        if text is not None and (not isinstance(text, str) or not text.strip()):
            shown = "" if name == "token" else f", not {text!r:.60}"
            raise ValueError(f"{name} is a text that is not blank{shown}")
    if kind is None:
        kind = _detect_kind(user or session, token, environment, variables)
    if kind not in _KINDS:
        raise ValueError(f"kind is one of {', '.join(_KINDS)}, not {kind!r}")
    fits = {"user": ("user", "session"), "token": ("token",)}.get(kind, ())
    unused = [name for name, text in given.items() if text is not None and name not in fits]
    if unused:
        raise ValueError(f"an owner of the kind {kind} has no {' and no '.join(unused)}")
    metadata: dict[str, Any] = {}
    if kind == "token":
        if not token:
            raise ValueError("an owner of the kind token needs the token")
        owner = f"token-{digest(token)}"
    elif kind == "user":
        name = _encodable(user or current_user(variables))
        where = _encodable(session or _current_session(variables))
        owner = _fit(f"user-{name}", f"@session-{where}")
        metadata.update(user_identity=name, session_id=where)
    elif kind == "ci":
        system, run = detect_ci(variables) or (None, None)
        # The specification's words for an unknown system and run.
        owner = _fit(f"ci-{system or 'unknown-ci'}-", run or str(round(time.time() * 1000)))
    else:
        process = this_process()
        host = _encodable(process.host or "unknown-host")
        owner = _fit(f"pid-{process.pid}", f"@{host}")
        metadata.update(hostname=host, process_id=process.pid)
    if environment is None:
        environment = _ENVIRONMENT_OF.get(kind) or detect_environment(variables)
    if purpose is None:
        purpose = "automated" if environment == "ci" else "interactive"
    metadata.update(environment=environment, purpose=purpose)
    return LockOwner(owner, metadata)


def _detect_kind(
    user: str | None, token: str | None, environment: str | None, environ: Mapping[str, str]
) -> Kind:
    if token is not None:
        return "token"
    if user is not None:
        return "user"
    if environment == "ci" or (environment is None and detect_ci(environ) is not None):
        return "ci"
    return "pid"


def current_user(environ: Mapping[str, str]) -> str:
    """Give the user's name from the system, or from variables if the system has none."""
    if sys.platform != "win32":
        try:
            import pwd  # noqa: PLC0415 - not on Windows

            return pwd.getpwuid(os.getuid()).pw_name
        except (ImportError, KeyError):
            pass  # in a container a user may have no name
    for variable in ("LOGNAME", "USER", "USERNAME"):
        if environ.get(variable):
            return environ[variable]
    if sys.platform == "win32":
        return "unknown"
    return str(os.getuid())


def _current_session(environ: Mapping[str, str]) -> str:
    for variable in ("XDG_SESSION_ID", "SESSIONNAME"):
        if environ.get(variable):
            return environ[variable]
    if sys.platform == "win32":
        return str(os.getppid())
    return str(os.getsid(0))


def _encodable(text: str) -> str:
    """Replace characters from the system that can't be encoded."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _fit(head: str, rest: str) -> str:
    """Join two texts; if they are too long for an owner, a digest replaces the end."""
    whole = _encodable(head + rest)
    if characters(whole) <= OWNER_LIMIT:
        return whole
    # A character is two units at most, so this is short enough.
    return f"{whole[: (OWNER_LIMIT - 21) // 2]}~{digest(whole)}"
