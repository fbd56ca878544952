"""The topics of ``semlock help``: exit codes, the environment, the record."""

from __future__ import annotations

from semlock._cli import BY_SIGNAL, EXIT_CODES, NOT_EXECUTABLE, NOT_FOUND
from semlock._cli.helping import columns, wrapped

TYPE_CHECKING = False  # what typing says, without importing it
if TYPE_CHECKING:
    from collections.abc import Sequence

# Each topic: a summary, paragraphs, and rows of a word and its meaning.
_Topic = tuple[str, tuple[str, ...], "Sequence[tuple[str, str]]"]

_CODES = (
    *((str(code), meaning) for code, meaning in EXIT_CODES),
    (str(NOT_EXECUTABLE), "run: the command can't be run"),
    (str(NOT_FOUND), "run: there is no such command"),
    (f"{BY_SIGNAL}+N", "the command, or a wait, was ended by signal N"),
)

TOPICS: dict[str, _Topic] = {
    "topics": (
        "what help there is besides the verbs",
        ("Show one with: semlock help TOPIC",),
        (),
    ),
    "exit-codes": (
        "what the exit codes mean",
        (
            ("run gives the command's own exit code; -E N gives another one than 1 when the lock "
             "can't be acquired, so that both can be told apart."),
        ),
        _CODES,
    ),
    "environment": (
        "the environment variables",
        (),
        (
            ("SEMLOCK_TRACE", ("a file into which every program that uses semlock writes what its "
             "locks do; see: semlock timeline --help")),
            ("SEMLOCK_URL", ("an engine, such as redis://host: a LOCK without a slash is a lock on "
             "it. No list of processes shows a password that stands there")),
            ("NO_COLOR", "no colours, whatever the terminal can; --color decides before it"),
            ("TERM", "dumb: no colours, and no line that is redrawn"),
            ("COLUMNS", "how wide tables are; else the terminal's width, and 80 for watch --once"),
        ),
    ),
    "engines": (
        "locks on servers that several machines share",
        (
            ("Where a verb takes a LOCK it takes an address too: redis://HOST[:PORT]/NAME, "
             "rediss:// by TLS, etcd://HOST[:PORT][,HOST...]/NAME, or "
             "postgresql://USER@HOST[:PORT]/DATABASE/NAME, and file:///DIRECTORY/NAME for a "
             "directory that several machines mount. Behind ? stand "
             "ttl=SECONDS and prefix=TEXT. run, try, acquire, release, status, list, wait, watch, "
             "break and doctor know them; list, watch and doctor take the address without NAME."),
            ("A lock passes on when its holder's lease has ended. run ends its command before "
             "that: by TERM when a quarter of the lease is left, by KILL when a tenth is. try and "
             "acquire leave a process behind that renews the lease until the shell ends."),
        ),
        (),
    ),
    "record": (
        "what is in a lock file",
        (
            ("A lock is held exactly while its file exists. A program without semlock takes part "
             "if it creates the file exclusively (set -C; echo pid=$$ > job.lock) and removes it. "
             "The content is for people and for the proof of death: lines of key=value, at most "
             "65536 bytes, of which only these are read."),
        ),
        (
            ("pid", "the holder's process number"),
            ("timestamp", "when it was acquired or refreshed, in seconds since 1970"),
            ("tag", "why it is held"),
            ("host", "the name of the machine"),
            ("start, boot, pidns, timens", "which process, boot and namespaces the number is of"),
            ("token", "the name of this hold"),
            ("witness", "whether the kernel keeps a lock on the file while the holder lives"),
        ),
    ),
}  # fmt: skip


def text_of(name: str) -> str:
    """Give the text of a topic."""
    summary, paragraphs, rows = TOPICS[name]
    if name == "topics":
        rows = [(other, TOPICS[other][0]) for other in TOPICS if other != name]
    lines = [f"{name}: {summary}"]
    for paragraph in paragraphs:
        lines += ["", *wrapped(paragraph, "")]
    if rows:
        lines += ["", *columns(rows)]
    return "\n".join(lines) + "\n"
