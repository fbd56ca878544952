"""What sema and semats do on a command line, for machines that have neither.

``stand_in.py sema|semats VERB PATH …`` takes the words, gives the exit codes and prints the
forms of the real tool: the tests of real peers are tried with it, so that they pass where a
real one is.  It locks as simply as they do, and is no lock to rely on.
"""

import json
import os
import sys
import time


def read(path):
    with open(path, encoding="utf-8") as file:
        pairs = (line.split("=", 1) for line in file.read().splitlines() if "=" in line)
        facts = {key.strip(): value.strip() for key, value in pairs}
    told = {"pid": int(facts["pid"]), "timestamp": int(facts["timestamp"])}
    return told | ({"tag": facts["tag"]} if "tag" in facts else {})


def take(path, tag, pid, mode):
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return 1
    text = f"pid={pid}\ntimestamp={int(time.time())}\n" + (f"tag={tag}\n" if tag else "")
    os.write(handle, text.encode())
    os.close(handle)
    return 0


def sema(verb, path, tag, more):
    """Write the number of its own process, which is gone as soon as it has done so."""
    if verb == "try":
        return take(path, tag, os.getpid(), 0o644)
    if verb == "release":
        os.unlink(path)
        return 0
    told = read(path) if os.path.exists(path) else None
    if "--json" in more:
        print(
            json.dumps({"locked": told is not None, **({"tag": None, **told} if told else {})})
        )
    elif told is None:
        print("Not locked")
    else:
        print(f"Locked\nPID: {told['pid']}\nTimestamp: {told['timestamp']}")
        if "tag" in told:
            print(f"Tag: {told['tag']}")
    return 0 if told is None else 1


def semats(verb, path, tag, more):
    """The same, but only the process that is named may release without ``--force``."""
    if verb == "try-acquire":
        return take(path, tag, os.getpid(), 0o600)
    if verb == "release":
        if "--force" not in more and read(path)["pid"] != os.getpid():
            print("Error: Lock is held by another process", file=sys.stderr)
            return 1
        os.unlink(path)
        return 0
    told = read(path) if os.path.exists(path) else None
    if "--json" in more:
        print(json.dumps({"locked": told is not None, "info": told, "isStale": False}))
    else:
        print(f"locked: {str(told is not None).lower()}")
        print(f"info: {json.dumps(told)}")
    return 0


def main():
    tool, verb, path, *more = sys.argv[1:]
    tag = more[more.index("--tag") + 1] if "--tag" in more else None
    return {"sema": sema, "semats": semats}[tool](verb, path, tag, more)


sys.exit(main())
