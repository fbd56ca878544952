"""What a lock may decorate or call: only that of which the body runs within the call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import functools
import types
import warnings

import pytest

import semlock
from semlock import feature, filelock, sema, sidecar, task

RAN = []


@pytest.fixture(autouse=True)
def nothing_ran_and_nothing_was_left_unawaited():
    RAN.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # that something was never awaited
        yield
    assert RAN == []


async def coroutine_function(*_):
    RAN.append("coroutine")


def generator_function(*_):
    RAN.append("generator")
    yield


async def async_generator_function(*_):
    RAN.append("async generator")
    yield


@types.coroutine
def old_coroutine_function(*_):
    RAN.append("old coroutine")
    yield


class Callable:
    async def __call__(self):
        RAN.append("object")


class GeneratingCallable:
    def __call__(self):
        RAN.append("object")
        yield


class Methods:
    async def coroutine(self):
        RAN.append("method")

    @classmethod
    async def of_class(cls):
        RAN.append("class method")

    @staticmethod
    def generator():
        RAN.append("static method")
        yield


RUN_LATER = {
    "coroutine function": coroutine_function,
    "generator function": generator_function,
    "async generator function": async_generator_function,
    "old coroutine function": old_coroutine_function,
    "partial of one": functools.partial(coroutine_function, 1),
    "partial of a generator": functools.partial(generator_function, 1),
    "partial of an async generator": functools.partial(async_generator_function, 1),
    "partial of a partial": functools.partial(functools.partial(coroutine_function, 1), 2),
    "object": Callable(),
    "partial of an object": functools.partial(Callable()),
    "generating object": GeneratingCallable(),
    "method": Methods().coroutine,
    "class method": Methods.of_class,
    "static method": staticmethod(generator_function),
    "class method to be": classmethod(coroutine_function),
    "method of the class": Methods.generator,
}


def wrapped(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        return function(*arguments)

    return wrapper


TELL_LATE = {
    name: wrapped(function)
    for name, function in RUN_LATER.items()
    if not isinstance(function, (staticmethod, classmethod))
}
TELL_LATE["context manager"] = contextlib.contextmanager(generator_function)
TELL_LATE["async context manager"] = contextlib.asynccontextmanager(async_generator_function)


class Bystander:
    """An awaitable that is no coroutine."""

    def __await__(self):
        RAN.append("awaitable")
        yield


class _FileLock(filelock.FileLock):
    held = property(lambda self: self.is_locked)


class _SoftFileLock(filelock.SoftFileLock):
    held = property(lambda self: self.is_locked)


SYNC = {
    "Lock": semlock.Lock,
    "reentrant": lambda path: semlock.Lock(path, reentrant=True),
    "SlotLock": lambda path: semlock.SlotLock(path, 2),
    "SharedLock": semlock.SharedLock,
    "TaskLock": lambda path: task.TaskLock(path, "me"),
    "Semaphore": sema.Semaphore,
    "FeatureLock": lambda path: feature.FeatureLock("one", path.parent),
    "SidecarLock": sidecar.SidecarLock,
    "KernelLock": semlock.KernelLock,
    "filelock.FileLock": _FileLock,
    "filelock.SoftFileLock": _SoftFileLock,
}
ASYNC = {
    "AsyncLock": semlock.AsyncLock,
    "AsyncSlotLock": lambda path: semlock.AsyncSlotLock(path, 2),
    "AsyncSharedLock": semlock.AsyncSharedLock,
}


@pytest.fixture(params=SYNC)
def lock(request, tmp_path):
    return SYNC[request.param](tmp_path / "the.lock")


@pytest.fixture(params=ASYNC)
def async_lock(request, tmp_path):
    return ASYNC[request.param](tmp_path / "the.lock")


def test_what_tells_that_it_runs_later_is_not_decorated(lock):
    for function in RUN_LATER.values():
        with pytest.raises(TypeError, match=r"returns before its body has run.*inside of it"):
            lock(function)


def test_what_shows_only_by_its_result_that_it_runs_later_is_refused_when_it_is_called(lock):
    for function in [*TELL_LATE.values(), Bystander]:
        decorated = lock(wrapped(function))
        with pytest.raises(TypeError, match="returns before its body has run"):
            decorated()
        assert not lock.held


def test_a_future_is_refused_and_cancelled(lock):
    future = concurrent.futures.Future()
    with pytest.raises(TypeError, match="it gave a Future"):
        lock(lambda: future)()
    assert future.cancelled()

    async def main():
        task = asyncio.ensure_future(coroutine_function())
        with pytest.raises(TypeError, match="it gave a Task"):
            lock(lambda: task)()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_class_is_not_decorated_and_nothing_that_cant_be_called(lock, async_lock):
    for decorator in (lock, async_lock):
        with pytest.raises(TypeError, match="decorate those"):
            decorator(Methods)
        with pytest.raises(TypeError, match="decorates functions"):
            decorator(property(len))


def test_methods_of_every_kind_run_under_the_lock(lock):
    class User:
        @lock
        def own(self):
            return lock.held, self

        @lock
        @classmethod
        def of_class(cls):
            return lock.held, cls

        @staticmethod
        @lock
        def inner():
            return lock.held

        @lock
        @staticmethod
        def outer():
            return lock.held

    user = User()
    assert user.own()[0]
    assert user.own()[1] is user
    assert User.of_class()[0]
    assert User.of_class()[1] is User
    assert User.inner()
    assert User.outer()
    assert user.outer()
    assert lock(functools.partial(lambda held: held or lock.held, 0))()
    assert not lock.held


def test_a_chain_of_decorators_around_a_function_that_waits_itself_is_well(lock):
    @lock
    @wrapped
    @functools.wraps(coroutine_function)
    def runs_its_own_loop():
        asyncio.run(asyncio.sleep(0))
        return lock.held

    assert runs_its_own_loop()
    assert runs_its_own_loop.__name__ == "coroutine_function"


def test_the_form_for_tasks_decorates_whatever_is_a_coroutine_function(async_lock):
    class User:
        @async_lock
        async def own(self):
            return async_lock.held

        @async_lock
        @staticmethod
        async def static():
            return async_lock.held

        async def __call__(self, *_):
            return async_lock.held

    async def main():
        assert await User().own()
        assert await User.static()
        assert await async_lock(User())()
        assert await async_lock(functools.partial(User(), 1))()

    asyncio.run(main())


def test_the_form_for_tasks_refuses_the_others(async_lock):
    for function in (async_generator_function, functools.partial(async_generator_function)):
        with pytest.raises(TypeError, match=r"returns before.*async with"):
            async_lock(function)
    for function in (generator_function, len, wrapped(coroutine_function)):
        with pytest.raises(TypeError, match="no coroutine function"):
            async_lock(function)


def test_what_a_coroutine_function_gives_must_have_run_too(async_lock):
    @async_lock
    async def gives(what):
        return what()

    async def main():
        for what in (coroutine_function, generator_function, async_generator_function):
            with pytest.raises(TypeError, match="returns before its body has run"):
                await gives(what)

    asyncio.run(main())


def test_a_call_under_a_sidecar_lock_looks_at_what_the_function_gives(tmp_path):
    target = tmp_path / "state.json"
    manager = sidecar.create_file_lock_manager("edges")
    for function in [*TELL_LATE.values(), *RUN_LATER.values()]:
        if isinstance(function, (staticmethod, classmethod)):
            continue
        for call in (sidecar.with_file_lock, manager.with_lock):
            with pytest.raises(TypeError, match="_async"):
                call(target, function)
            with pytest.raises(TypeError, match="_async"):
                call(target, lambda function=function: function())
    assert not (tmp_path / "state.json.lock").exists()
    assert sidecar.with_file_lock(target, lambda: 7) == 7


def test_a_call_in_a_loop_awaits_what_the_function_gives_under_the_lock(tmp_path):
    target = tmp_path / "state.json"
    manager = sidecar.create_file_lock_manager("edges")
    seen = []

    async def work():
        await asyncio.sleep(0)
        seen.append((tmp_path / "state.json.lock").exists())
        return len(seen)

    async def main():
        for call in (sidecar.with_file_lock_async, manager.with_lock_async):
            await call(target, lambda: work())
            await call(target, lambda: asyncio.ensure_future(work()))
            for function in (generator_function, async_generator_function):
                with pytest.raises(TypeError, match="returns before its body has run"):
                    await call(target, function)

    asyncio.run(main())
    assert seen == [True] * 4
