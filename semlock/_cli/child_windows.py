"""Running a command on Windows: no process is made before the lock is taken."""

from __future__ import annotations

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence

    from semlock._cli.child import Started


class Child:
    """A command that ``run`` starts."""

    pid = None

    def __init__(self, command: tuple[str, ...], *, dies: bool = False) -> None:
        del dies
        self._command = command

    def run(self, started: Started, _inherited: Sequence[int] = ()) -> int:
        """Run the command to its end and return its exit code."""
        import signal  # noqa: PLC0415 - when the lock is held, not before
        import subprocess  # noqa: PLC0415

        from semlock._cli.passing import failure  # noqa: PLC0415 - while it is needed

        # A console sends Ctrl-C to the command too, which decides what to do.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            process = subprocess.Popen(self._command)
        except OSError as error:
            return failure(self._command[0], error)
        started()
        return process.wait()

    def end(self) -> None:
        """Free all resources."""
