"""Owners of task locks: the four kinds, how they are found out, and how long they hold."""

import os
import pickle
import sys

import pytest

import semlock
from semlock import task
from semlock._systems.task_owner import (
    TTL,
    current_user,
    detect_ci,
    detect_environment,
    in_container,
    kind_of,
)
from semlock.task import LockOwner, TaskLock, owner_for, ttl_for
from support import HOST, set_time


@pytest.fixture(autouse=True)
def no_container(monkeypatch):
    """What the tests run in must not be seen by them."""
    monkeypatch.setattr("semlock._systems.task_owner._CONTAINER_MARKS", ())
    monkeypatch.setattr("semlock._systems.task_owner._CONTROL_GROUPS", ())


# ---------------------------------------------------------------- the four kinds


def test_by_default_the_owner_is_this_process():
    owner = owner_for(environ={})
    assert owner.owner == f"pid-{os.getpid()}@{HOST}"
    assert owner.kind == "pid"
    assert owner.metadata == {
        "hostname": HOST, "process_id": os.getpid(), "environment": "local",
        "purpose": "interactive",
    }  # fmt: skip


def test_a_user_is_named_with_the_session():
    owner = owner_for(user="john.doe@company.com", session="sess_abc123", environ={})
    assert owner.owner == "user-john.doe@company.com@session-sess_abc123"
    assert owner.kind == "user"
    assert owner.metadata == {
        "user_identity": "john.doe@company.com", "session_id": "sess_abc123",
        "environment": "local", "purpose": "interactive",
    }  # fmt: skip


def test_user_and_session_are_found_out():
    owner = owner_for(kind="user", environ={"XDG_SESSION_ID": "c2"})
    assert owner.owner == f"user-{current_user({})}@session-c2"
    owner = owner_for(kind="user", environ={"SESSIONNAME": "Console"})
    assert owner.metadata["session_id"] == "Console"
    assert owner_for(kind="user", environ={}).metadata["session_id"].isdigit()


def test_the_user_is_the_one_that_the_system_knows_whatever_a_variable_says(monkeypatch):
    pwd = pytest.importorskip("pwd")
    name = pwd.getpwuid(os.getuid()).pw_name
    assert current_user({"USER": "somebody-else"}) == name

    def nobody(number):
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert current_user({"USER": "ann"}) == "ann"
    assert current_user({}) == str(os.getuid())


def test_a_token_is_a_digest_in_the_cloud():
    owner = owner_for(token="eyJhbGciOiJIUzI1NiJ9.x.y", environ={"CI": "true"})
    assert owner.kind == "token"
    assert owner.metadata == {"environment": "cloud", "purpose": "interactive"}
    with pytest.raises(ValueError, match="needs the token"):
        owner_for(kind="token")


@pytest.mark.parametrize(
    ("environ", "owner"),
    [
        ({"CI_SYSTEM": "pipeline-gh", "CI_RUN_ID": "456"}, "ci-pipeline-gh-456"),
        ({"CI_RUN_ID": "456"}, "ci-unknown-ci-456"),
        ({"GITHUB_ACTIONS": "true", "CI": "true", "GITHUB_RUN_ID": "77"}, "ci-github-77"),
        ({"GITLAB_CI": "true", "CI_JOB_ID": "5", "CI_PIPELINE_ID": "4"}, "ci-gitlab-5"),
        ({"GITLAB_CI": "true", "CI_PIPELINE_ID": "4"}, "ci-gitlab-4"),
        ({"JENKINS_URL": "http://x/", "BUILD_TAG": "jenkins-a-12"}, "ci-jenkins-jenkins-a-12"),
        ({"JENKINS_URL": "http://x/", "BUILD_ID": "12"}, "ci-jenkins-12"),
        ({"CIRCLECI": "true", "CIRCLE_BUILD_NUM": "9"}, "ci-circleci-9"),
        ({"TRAVIS": "true", "TRAVIS_JOB_ID": "8", "TRAVIS_BUILD_ID": "7"}, "ci-travis-8"),
        ({"TF_BUILD": "True", "BUILD_BUILDID": "31"}, "ci-azure-31"),
        ({"BUILDKITE": "true", "BUILDKITE_BUILD_ID": "u-1"}, "ci-buildkite-u-1"),
        ({"BITBUCKET_BUILD_NUMBER": "3"}, "ci-bitbucket-3"),
        ({"TEAMCITY_VERSION": "2024.1", "BUILD_NUMBER": "40"}, "ci-teamcity-40"),
        ({"DRONE": "true", "DRONE_BUILD_NUMBER": "2"}, "ci-drone-2"),
        ({"APPVEYOR": "True", "APPVEYOR_JOB_ID": "j1"}, "ci-appveyor-j1"),
        ({"CODEBUILD_BUILD_ID": "p:1-2"}, "ci-codebuild-p:1-2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_of_continuous_integration_is_found_out(environ, owner):
    found = owner_for(environ=environ)
    assert found.owner == owner
    assert found.kind == "ci"
    assert found.metadata == {"environment": "ci", "purpose": "automated"}


def test_an_unknown_system_has_the_time_as_its_run(monkeypatch):
    set_time(monkeypatch, lambda: 1761229800.5)
    assert owner_for(environ={"CI": "1"}).owner == "ci-unknown-ci-1761229800500"
    assert owner_for(kind="ci", environ={}).owner == "ci-unknown-ci-1761229800500"
    assert owner_for(environment="ci", environ={}).kind == "ci"


@pytest.mark.parametrize("off", ["", "0", "false", "False", "no", "off", " "])
def test_a_variable_that_says_no_is_none(off):
    assert detect_ci({"CI": off, "TRAVIS": off, "GITHUB_ACTIONS": off}) is None


@pytest.mark.parametrize("kind", ["robot", "other"])
def test_an_unknown_kind_is_an_error(kind):
    with pytest.raises(ValueError, match="kind is one of pid, user, token, ci"):
        owner_for(kind=kind)


def test_kind_environment_and_purpose_can_be_said():
    runs = {"GITHUB_ACTIONS": "true", "GITHUB_RUN_ID": "1"}
    assert owner_for(kind="pid", environ=runs).kind == "pid"
    assert owner_for(kind="pid", environ=runs).environment == "ci"
    owner = owner_for(environment="container", purpose="emergency", environ=runs)
    assert (owner.kind, owner.environment, owner.purpose) == ("pid", "container", "emergency")


def test_what_is_too_long_for_an_owner_ends_in_a_digest():
    long = {"CI_SYSTEM": "x", "CI_RUN_ID": "\U0001f512" * 300}
    first, second = owner_for(environ=long), owner_for(environ={**long, "CI_SYSTEM": "y"})
    for owner in (first, second):
        assert len(owner.owner.encode("utf-16-le")) // 2 <= 256
    assert first.owner[-20:] != second.owner[-20:]


def test_what_is_no_text_in_the_environment_is_replaced():
    assert owner_for(environ={"CI_RUN_ID": "a\udcff"}).owner == "ci-unknown-ci-a?"


# ---------------------------------------------------------------- containers


@pytest.mark.parametrize("variable", ["KUBERNETES_SERVICE_HOST", "container"])
def test_a_container_is_known_by_its_variables(variable):
    assert in_container({variable: "podman"})
    assert not in_container({variable: ""})


@pytest.mark.parametrize("mark", ["/.dockerenv", "/run/.containerenv"])
def test_a_container_is_known_by_its_files(mark, tmp_path, monkeypatch):
    monkeypatch.setattr("semlock._systems.task_owner._CONTAINER_MARKS", (mark,))
    assert not in_container({}, str(tmp_path))
    (tmp_path / "run").mkdir()
    (tmp_path / mark[1:]).touch()
    assert in_container({}, str(tmp_path))
    assert detect_environment({}, str(tmp_path)) == "container"


@pytest.mark.parametrize(
    ("groups", "contained"),
    [
        ("0::/\n", False), ("0::/user.slice/user-1000.slice/session-2.scope\n", False),
        ("12:pids:/docker/4af9\n", True), ("0::/kubepods/besteffort/pod1\n", True),
        ("0::/machine.slice/libpod-9.scope\n", True), ("1:name=systemd:/lxc/web\n", True),
        ("", False),
    ],
)  # fmt: skip
def test_a_container_is_known_by_its_control_group(groups, contained, tmp_path, monkeypatch):
    monkeypatch.setattr("semlock._systems.task_owner._CONTROL_GROUPS", ("/cgroup",))
    (tmp_path / "cgroup").write_text(groups)
    assert in_container({}, str(tmp_path)) is contained
    (tmp_path / "cgroup").unlink()
    assert not in_container({}, str(tmp_path))


def test_a_job_in_a_container_is_the_systems_first():
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "GITLAB_CI": "true", "CI_JOB_ID": "1"}
    assert owner_for(environ=environ).environment == "ci"
    environ.pop("GITLAB_CI")
    owner = owner_for(environ=environ)
    assert (owner.kind, owner.environment) == ("pid", "container")


# ---------------------------------------------------------------- how long


@pytest.mark.parametrize(
    ("environment", "purpose", "seconds"),
    [
        ("local", "interactive", 3600), ("local", "automated", 1800),
        ("local", "emergency", 300), ("ci", "automated", 86400), ("ci", "interactive", 3600),
        ("cloud", "interactive", 7200), ("cloud", "automated", 14400),
        ("container", "interactive", 1800), ("container", "automated", 3600),
    ],
)  # fmt: skip
def test_the_time_to_live_is_that_of_the_table(environment, purpose, seconds, path):
    assert ttl_for(environment, purpose) == seconds
    assert TTL[environment][purpose] == seconds
    assert TaskLock(path, "x", environment=environment, purpose=purpose).ttl == seconds


@pytest.mark.parametrize("environment", ["ci", "cloud", "container"])
def test_an_emergency_is_as_short_everywhere_as_it_is_locally(environment):
    assert "emergency" not in TTL[environment]
    assert ttl_for(environment, "emergency") == 300


def test_a_ttl_that_is_said_wins(path):
    assert TaskLock(path, owner_for(environ={}), ttl=5).ttl == 5


# ---------------------------------------------------------------- owners as values


@pytest.mark.parametrize(
    ("text", "kind", "metadata"),
    [
        ("pid-12@box.local", "pid", {"hostname": "box.local", "process_id": 12}),
        ("pid-0@box", "pid", {"hostname": "box"}),
        ("pid-99999999999@box", "pid", {}), ("pid-१२@box", "pid", {}), ("pid-12", "pid", {}),
        ("pid-@", "pid", {}), ("pid-agent-7", "pid", {}),
        ("user-a@b@session-c", "user", {"user_identity": "a@b", "session_id": "c"}),
        ("user-ann", "user", {}), ("user-@session-", "user", {}),
        ("ci-github-7", "ci", {}), ("agent-7", "other", {}), ("token", "other", {}),
    ],
)  # fmt: skip
def test_an_owner_given_as_text_says_what_it_says(text, kind, metadata, path):
    owner = TaskLock(path, text).owner
    assert (owner.owner, owner.kind) == (text, kind)
    expected = {"ci": ("ci", "automated")}.get(kind, ("local", "interactive"))
    assert (owner.environment, owner.purpose) == expected
    known = owner.metadata
    del known["environment"], known["purpose"]
    assert known == metadata
    assert kind_of(text) == kind


def test_an_owner_is_a_value():
    owner = LockOwner("x", {"purpose": "automated"})
    assert owner == LockOwner("x", {"environment": "local", "purpose": "automated"})
    assert owner != LockOwner("x")
    assert owner != "x"
    assert hash(owner) == hash(pickle.loads(pickle.dumps(owner)))
    assert pickle.loads(pickle.dumps(owner)) == owner
    owner.metadata["purpose"] = "fun"
    assert owner.purpose == "automated"
    assert owner.replace(environment="cloud").metadata == {
        "environment": "cloud", "purpose": "automated",
    }  # fmt: skip
    assert "x" in repr(owner)
    assert "eyJ" not in repr(LockOwner("token-eyJhbGciOiJIUzI1NiIs"))


def test_metadata_is_written_in_the_order_of_the_schema():
    owner = LockOwner("x", {"purpose": "automated", "session_id": "s", "hostname": "h"})
    assert list(owner.metadata) == ["hostname", "session_id", "environment", "purpose"]
    assert LockOwner("x", {"process_id": 7.0}).metadata["process_id"] == 7


def test_the_owner_of_a_lock_can_be_put_elsewhere(path):
    lock = TaskLock(path, LockOwner("x"), environment="cloud", purpose="automated")
    assert (lock.owner.environment, lock.owner.purpose, lock.ttl) == (
        "cloud",
        "automated",
        14400,
    )
    with pytest.raises(semlock.LockRecordError, match="environment is one of"):
        TaskLock(path, "x", environment="moon")


def test_names_are_those_of_the_public_module():
    for name in task.__all__:
        thing = getattr(task, name)
        if isinstance(thing, type):
            assert thing.__module__ == "semlock.task"
    assert sys.modules["semlock.task"] is task
