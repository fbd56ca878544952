# Made of csrc/semlock_api.h by `python csrc/make_stub.py`.  A pointer to a structure has the
# structure's type, as cffi reads the fields of both alike.
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Literal, TypeVar, overload

T = TypeVar("T")

class Bytes:
    """A ``char *`` or ``char[]``."""

class Array(Generic[T]):
    """An array of numbers or structures, or a pointer to one."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[T]: ...
    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Array[T]: ...
    def __setitem__(self, index: int, value: T) -> None: ...

class Memory:
    """The bytes of an array, shared and not copied."""

    def __getitem__(self, index: slice) -> bytes: ...
    def __setitem__(self, index: slice, value: bytes) -> None: ...

class Compiler:
    """What is used of cffi's ``FFI``."""

    NULL: Any  # of every pointer type

    @overload
    def new(self, kind: Literal["semlock_file *"]) -> semlock_file: ...
    @overload
    def new(self, kind: Literal["semlock_ticket *"]) -> semlock_ticket: ...
    @overload
    def new(self, kind: Literal["semlock_record *"]) -> semlock_record: ...
    @overload
    def new(self, kind: Literal["semlock_lock *"]) -> semlock_lock: ...
    @overload
    def new(self, kind: Literal["semlock_slot *"]) -> semlock_slot: ...
    @overload
    def new(self, kind: Literal["semlock_burst *"]) -> semlock_burst: ...
    @overload
    def new(self, kind: Literal["semlock_pool *"]) -> semlock_pool: ...
    @overload
    def new(self, kind: Literal["semlock_watch *"]) -> semlock_watch: ...
    @overload
    def new(self, kind: Literal["semlock_place *"]) -> semlock_place: ...
    @overload
    def new(self, kind: Literal["semlock_waiting *"]) -> semlock_waiting: ...
    @overload
    def new(self, kind: Literal["semlock_view *"]) -> semlock_view: ...
    @overload
    def new(self, kind: Literal["semlock_process *"]) -> semlock_process: ...
    @overload
    def new(self, kind: Literal["semlock_change *"]) -> semlock_change: ...
    @overload
    def new(self, kind: Literal["semlock_command *"]) -> semlock_command: ...
    @overload
    def new(self, kind: Literal["semlock_watch[]"], size: int) -> Array[semlock_watch]: ...
    @overload
    def new(self, kind: Literal["semlock_change[]"], size: int) -> Array[semlock_change]: ...
    @overload
    def new(
        self, kind: Literal["semlock_lock *[]"], given: Iterable[semlock_lock]
    ) -> Array[semlock_lock]: ...
    @overload
    def new(self, kind: Literal["int32_t[]", "int64_t[]"], size: int) -> Array[int]: ...
    @overload
    def new(self, kind: Literal["int64_t *"]) -> Array[int]: ...
    @overload
    def new(self, kind: Literal["char[]"], size: int | bytes) -> Bytes: ...
    @overload
    def new(self, kind: Literal["char *[]"], given: Iterable[Bytes]) -> Array[Bytes]: ...
    def new_allocator(
        self, *, should_clear_after_alloc: bool
    ) -> Callable[[Literal["char[]"], int], Bytes]: ...
    def buffer(self, data: Bytes | Array[Any], size: int = ...) -> Memory: ...
    def from_buffer(self, data: bytes) -> Bytes: ...
    def string(self, data: Bytes) -> bytes: ...
    def getwinerror(self, code: int) -> tuple[int, str]: ...

class semlock_file:
    handle: int
    dev: int
    ino: int
    ino_high: int
    length: int
    mode: int
    given: int
    local: int
    witness: int
    named: int
    whole: int
    witness_at: int
    bare: int
    strange: int
    marked: int
    user: int
    group: int
    asked: int
    place: int

class semlock_ticket:
    handle: int
    dev: int
    ino: int
    number: int
    name_hash: int
    ctime_ns: int
    told: int
    relay: int

class semlock_record:
    text: Bytes
    length: int
    stamp_at: int
    token_at: int
    witness_at: int
    head: int
    mode: int
    durability: int
    in_place: int
    detached: int
    life: int

class semlock_lock:
    path: Bytes
    record: semlock_record
    path_length: int
    directory_length: int
    directory_hash: int
    name_hash: int
    turns: int
    kernel: int
    lent: int
    life: int
    owner: int
    look_at: int
    holder: int
    witnessed: int
    checks: int
    seen_in: int
    serial: int
    endings: int
    stamp: int
    held: int
    depth: int
    reentrant: int
    by_object: int
    fleeting: int
    expect_held: int
    waited: int
    vouched: int
    stamp_at: int
    token_at: int
    head: int
    content: int
    written: int
    strict: int
    prepared: int
    ready: int
    file: semlock_file
    ticket: semlock_ticket
    token: Bytes

class semlock_slot:
    state: int
    directory_length: int
    directory_hash: int
    used: int
    file: semlock_file
    directory: Bytes

class semlock_burst:
    began: int
    released: int
    contended: int
    key: int
    free_since: int
    free_first: int
    passed: int
    passed_at: int

class semlock_pool:
    life: int
    seed: Array[int]
    count: int
    boot: int
    boot_id: Bytes
    pidns: int
    watched: int
    ordered: int
    reserve: int
    bare: int
    no_link_by_fd: int
    keep: int
    prepared: int
    seen_count: int
    seen: Array[int]
    slots: Array[semlock_slot]
    bursts: Array[semlock_burst]
    holding: Array[int]
    idle_events: Array[int]
    idle_marks: Array[int]
    idle_names: Array[int]
    safety: int

class semlock_watch:
    path: Bytes
    mark: int
    due: int
    told: int
    heard: int
    unsure: int
    again_at: int
    dev: int
    ino: int
    vouched_until: int
    judged_dev: int
    judged_ino: int
    judged_ctime_ns: int
    kernel: int
    lent: int
    ask: semlock_file

class semlock_place:
    path: Bytes
    directory_length: int
    directory_hash: int
    name_hash: int
    record: semlock_record
    ticket: semlock_ticket
    asked: int
    joined_at: int
    before: int
    ahead: int
    behind: int
    counted: int
    counted_at: int
    due: int
    told: int
    unsure: int
    doubt: int
    relayed: int
    refused: int
    out_of_turn: int
    read_at: int
    alone_until: int
    bell: int
    mark: int
    told_at: int
    alarm_at: int
    free_since: int
    free_first: int
    slow: int
    free_at: int

class semlock_waiting:
    place: semlock_place
    watches: Array[semlock_watch]
    count: int
    which: int
    queued: int
    events: int
    lent: int
    deaf: int
    hints: int
    unqueued: int
    blind: int
    unpaced: int
    postponed: int
    kernel: int
    looked: int
    started: int
    stopped: int
    poked: int
    life: int
    began: int
    unread: int
    lock: semlock_lock
    locks: Array[semlock_lock]
    fair: int
    tried: int
    signals: None
    followed: int
    process: int
    recheck: int
    recheck_at: int
    pause: int
    pause_at: int
    safety_at: int
    look_at: int

class semlock_view:
    kind: int
    mode: int
    dev: int
    ino: int
    ino_high: int
    size: int
    ctime_ns: int
    mtime_ns: int
    uid: int
    links: int
    witness: int
    local: int
    unfinished: int
    length: int
    boot_mark: int

class semlock_process:
    pid: int
    start: int
    pidns: int
    timens: int
    boot: Bytes

class semlock_change:
    mark: int
    ino: int
    what: int
    name: int
    length: int

class semlock_command:
    places: Array[Bytes]
    words: Array[Bytes]
    number: int
    otherwise: int
    blocked: int
    ignored: int
    defaults: int

class Library:
    SEMLOCK_OK: Final[int]
    SEMLOCK_HELD: Final[int]
    SEMLOCK_LOOK: Final[int]
    SEMLOCK_MINE: Final[int]
    SEMLOCK_FREE: Final[int]
    SEMLOCK_LOST: Final[int]
    SEMLOCK_CHANGED: Final[int]
    SEMLOCK_GUARDED: Final[int]
    SEMLOCK_ALIVE: Final[int]
    SEMLOCK_NESTED: Final[int]
    SEMLOCK_KEPT: Final[int]
    SEMLOCK_TURN: Final[int]
    SEMLOCK_ARMED: Final[int]
    SEMLOCK_BLIND: Final[int]
    SEMLOCK_TIME: Final[int]
    SEMLOCK_FORKED: Final[int]
    SEMLOCK_OTHER_THREAD: Final[int]
    SEMLOCK_RACED: Final[int]
    SEMLOCK_IN_TURN: Final[int]
    SEMLOCK_ANYWAY: Final[int]
    SEMLOCK_ONLY_LOOK: Final[int]
    SEMLOCK_NO_TURNS: Final[int]
    SEMLOCK_TAKE_TURNS: Final[int]
    SEMLOCK_FAIR: Final[int]
    SEMLOCK_BY_FILE: Final[int]
    SEMLOCK_EXCLUSIVE: Final[int]
    SEMLOCK_SHARED: Final[int]
    SEMLOCK_BY_CALLER: Final[int]
    SEMLOCK_BY_WITNESS: Final[int]
    SEMLOCK_BY_PROOF: Final[int]
    SEMLOCK_REGULAR: Final[int]
    SEMLOCK_SYMLINK: Final[int]
    SEMLOCK_DIRECTORY: Final[int]
    SEMLOCK_OTHER: Final[int]
    SEMLOCK_RUNS: Final[int]
    SEMLOCK_EXISTS: Final[int]
    SEMLOCK_GONE: Final[int]
    SEMLOCK_RECYCLED: Final[int]
    SEMLOCK_ZOMBIE: Final[int]
    SEMLOCK_UNWITNESSED: Final[int]
    SEMLOCK_WITNESSED: Final[int]
    SEMLOCK_MUTE: Final[int]
    SEMLOCK_SYNC_NONE: Final[int]
    SEMLOCK_SYNC_DATA: Final[int]
    SEMLOCK_SYNC_FULL: Final[int]
    SEMLOCK_SYNC_SAFE: Final[int]
    SEMLOCK_EXACT: Final[int]
    SEMLOCK_DESPITE_WITNESS: Final[int]
    SEMLOCK_RECORD_LIMIT: Final[int]
    SEMLOCK_REWRITE_LIMIT: Final[int]
    SEMLOCK_POOL_SLOTS: Final[int]
    SEMLOCK_PREPARED: Final[int]
    SEMLOCK_SEEN: Final[int]
    SEMLOCK_BURSTS: Final[int]
    SEMLOCK_IDLE_EVENTS: Final[int]
    SEMLOCK_BURST_NS: Final[int]
    SEMLOCK_CONTENDED_NS: Final[int]
    SEMLOCK_AGAIN_NS: Final[int]
    SEMLOCK_TICKET_DEAD: Final[int]
    SEMLOCK_TICKET_WAITS: Final[int]
    SEMLOCK_TICKET_HOLDS: Final[int]
    SEMLOCK_TICKET_NONE: Final[int]
    SEMLOCK_NAME_GONE: Final[int]
    SEMLOCK_NAME_MADE: Final[int]
    SEMLOCK_FILE_CLOSED: Final[int]
    SEMLOCK_WATCH_OVER: Final[int]
    SEMLOCK_CHANGE_ROOM: Final[int]
    def semlock_set_path(self, lock: semlock_lock, path: bytes | Bytes, length: int, /) -> None: ...
    def semlock_try(self, lock: semlock_lock, pool: semlock_pool, /) -> int: ...
    def semlock_try_many(self, locks: Array[semlock_lock], outcomes: bytes | Bytes, errors: Array[int], count: int, how: int, pool: semlock_pool, /) -> None: ...
    def semlock_try_or_wait(self, lock: semlock_lock, pool: semlock_pool, /) -> int: ...
    def semlock_try_anyway(self, lock: semlock_lock, pool: semlock_pool, /) -> int: ...
    def semlock_kernel_locked(self, lock: semlock_lock, pool: semlock_pool, /) -> int: ...
    def semlock_release(self, lock: semlock_lock, pool: semlock_pool, /) -> int: ...
    def semlock_refresh(self, lock: semlock_lock, pool: semlock_pool, text: bytes | Bytes, length: int, serial: int, /) -> int: ...
    def semlock_check(self, lock: semlock_lock, pool: semlock_pool, /) -> int: ...
    def semlock_detach(self, lock: semlock_lock, pool: semlock_pool, /) -> int: ...
    def semlock_holds(self, lock: semlock_lock, pool: semlock_pool, /) -> int: ...
    def semlock_forget(self, lock: semlock_lock, pool: semlock_pool, /) -> None: ...
    def semlock_queue_exists(self, lock: semlock_lock, /) -> int: ...
    def semlock_must_make_way(self, lock: semlock_lock, pool: semlock_pool, /) -> int: ...
    def semlock_must_make_way_to_any(self, queue: semlock_lock, locks: Array[semlock_lock], count: int, pool: semlock_pool, /) -> int: ...
    def semlock_burst_began(self, pool: semlock_pool, lock: semlock_lock, /) -> None: ...
    def semlock_burst_released(self, pool: semlock_pool, lock: semlock_lock, /) -> None: ...
    def semlock_life(self, pool: semlock_pool, /) -> int: ...
    def semlock_busy(self) -> int: ...
    def semlock_pool_drain(self, pool: semlock_pool, directory: bytes | Bytes, length: int, /) -> None: ...
    def semlock_inspect(self, path: bytes | Bytes, pool: semlock_pool, view: semlock_view, bytes: bytes | Bytes, capacity: int, /) -> int: ...
    def semlock_read_file(self, path: bytes | Bytes, pool: semlock_pool, bytes: bytes | Bytes, capacity: int, /) -> int: ...
    def semlock_confirm(self, path: bytes | Bytes, pool: semlock_pool, judged: semlock_view, /) -> int: ...
    def semlock_remove(self, path: bytes | Bytes, pool: semlock_pool, judged: semlock_view, bytes: bytes | Bytes, flags: int, /) -> int: ...
    def semlock_rewrite(self, path: bytes | Bytes, pool: semlock_pool, judged: semlock_view, bytes: bytes | Bytes, text: bytes | Bytes, length: int, /) -> int: ...
    def semlock_waiting_start(self, waiting: semlock_waiting, pool: semlock_pool, /) -> int: ...
    def semlock_waiting_arm(self, waiting: semlock_waiting, pool: semlock_pool, /) -> int: ...
    def semlock_waiting_sleep(self, waiting: semlock_waiting, pool: semlock_pool, until: int, /) -> int: ...
    def semlock_waiting_wait(self, waiting: semlock_waiting, pool: semlock_pool, until: int, /) -> int: ...
    def semlock_waiting_again(self, waiting: semlock_waiting, lock: semlock_lock, pool: semlock_pool, until: int, /) -> int: ...
    def semlock_waiting_take(self, waiting: semlock_waiting, lock: semlock_lock, pool: semlock_pool, until: int, /) -> int: ...
    def semlock_waiting_told(self, waiting: semlock_waiting, marks: Array[int], count: int, /) -> int: ...
    def semlock_waiting_follow(self, waiting: semlock_waiting, pid: int, start: int, /) -> int: ...
    def semlock_waiting_leave(self, waiting: semlock_waiting, pool: semlock_pool, /) -> None: ...
    def semlock_waiting_in_turn(self, waiting: semlock_waiting, fair: int, pool: semlock_pool, /) -> int: ...
    def semlock_waiting_due(self, waiting: semlock_waiting, /) -> None: ...
    def semlock_waiting_stop(self, waiting: semlock_waiting, /) -> None: ...
    def semlock_waiting_end(self, waiting: semlock_waiting, pool: semlock_pool, won: semlock_lock, /) -> None: ...
    def semlock_waiting_forget(self, waiting: semlock_waiting, /) -> None: ...
    def semlock_waiting_later(self, waiting: semlock_waiting, which: int, nanoseconds: int, /) -> None: ...
    def semlock_ticket_clean(self, path: bytes | Bytes, pool: semlock_pool, /) -> int: ...
    def semlock_ticket_state(self, path: bytes | Bytes, /) -> int: ...
    def semlock_events_take(self, pool: semlock_pool, /) -> int: ...
    def semlock_events_give(self, pool: semlock_pool, events: int, /) -> None: ...
    def semlock_events_read(self, events: int, marks: Array[int], room: int, /) -> int: ...
    def semlock_folders_begin(self, events: Array[int], pool: semlock_pool, /) -> None: ...
    def semlock_folders_end(self, events: Array[int], pool: semlock_pool, /) -> None: ...
    def semlock_folder_watch(self, events: int, directory: bytes | Bytes, /) -> int: ...
    def semlock_folder_unwatch(self, events: int, mark: int, /) -> None: ...
    def semlock_folder_changes(self, events: int, life: int, pool: semlock_pool, buffer: bytes | Bytes, size: int, changes: semlock_change, /) -> int: ...
    def semlock_spawn(self, command: semlock_command, lock: semlock_lock, pid: Array[int], /) -> int: ...
    def semlock_identify(self, process: semlock_process, /) -> int: ...
    def semlock_boot_number(self, boot: bytes | Bytes, /) -> int: ...
    def semlock_start_time(self, pid: int, start: Array[int], /) -> int: ...
    def semlock_probe(self, pid: int, start: int, /) -> int: ...
    def semlock_boot_time(self) -> int: ...
    def semlock_thread(self) -> int: ...
    def semlock_now_ns(self) -> int: ...
    def semlock_yield(self) -> None: ...

ffi: Compiler
lib: Library
