"""Where this process runs: in a system for continuous integration, or in a container."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Literal

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
