# fish completion for semlock; put it into ~/.config/fish/completions/semlock.fish
complete -c semlock -f
set -l semlock_verbs run flock try acquire reclaim release refresh status wait list clean break migrate doctor watch timeline completion help
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a run -d 'hold locks while a command runs'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a flock -d "the command flock(1), with semlock's waiting"
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a try -d 'take a lock for the calling shell, if it is free'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a acquire -d 'take a lock for the calling shell, waiting for it'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a reclaim -d 'take a task lock for the calling shell, also from a holder'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a release -d 'release a lock that try or acquire took'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a refresh -d 'write the present time into a lock that try or acquire took'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a status -d 'say who holds a lock; exit 1 if it is held'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a wait -d 'wait until a lock is free, without taking it'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a list -d 'list locks'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a clean -d 'remove what dead processes have left'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a break -d 'remove a lock from its holder'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a migrate -d 'give an old task lock the enhanced form'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a doctor -d 'say what is guaranteed in a directory, or on an engine'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a watch -d 'show the locks in a directory, and go on doing so'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a timeline -d 'make a picture of a trace'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a completion -d 'print the completion file of a shell'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -a help -d 'show the help of a verb or a topic'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -s h -l help -d 'show this help'
complete -c semlock -n "not __fish_seen_subcommand_from $semlock_verbs" -l version -d 'show the version'
complete -c semlock -n "__fish_seen_subcommand_from run" -s t -s w -l wait -l timeout -x -d 'wait so long at most: seconds, or 500ms, 1m, 2h; 0 tries once (forever)'
complete -c semlock -n "__fish_seen_subcommand_from run" -s n -l no-wait -d "don't wait: the same as --timeout 0"
complete -c semlock -n "__fish_seen_subcommand_from run" -s m -l tag -x -d 'say in the lock what it is held for'
complete -c semlock -n "__fish_seen_subcommand_from run" -s s -l shared -d 'share the lock with other commands that share it'
complete -c semlock -n "__fish_seen_subcommand_from run" -l slots -x -d 'take one of N places: N commands may run at a time'
complete -c semlock -n "__fish_seen_subcommand_from run" -l fair -d 'strict order: never before a waiter that asked earlier'
complete -c semlock -n "__fish_seen_subcommand_from run" -l durability -x -a 'safe full data none' -d 'what a power cut may do to the lock (safe; full for other systems than semlock)'
complete -c semlock -n "__fish_seen_subcommand_from run" -l make-dirs -d "make missing directories of the lock's path"
complete -c semlock -n "__fish_seen_subcommand_from run" -l kernel -d "the kernel's lock on the file (flock), as flock(1) and filelock take it"
complete -c semlock -n "__fish_seen_subcommand_from run" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d 'the lock system of the file (semlock)'
complete -c semlock -n "__fish_seen_subcommand_from run" -l stale -x -d 'the age from which a lock may be taken, for systems that go by age; 0: never'
complete -c semlock -n "__fish_seen_subcommand_from run" -l owner -x -d 'of a task lock: its owner, in words'
complete -c semlock -n "__fish_seen_subcommand_from run" -l user -x -d 'of a task lock: its owner is this user'
complete -c semlock -n "__fish_seen_subcommand_from run" -l session -x -d 'of a task lock: in this session of the user'
complete -c semlock -n "__fish_seen_subcommand_from run" -l token-file -x -d 'of a task lock: its owner has the token in this file; the record has a digest'
complete -c semlock -n "__fish_seen_subcommand_from run" -l ttl -x -d 'of a task lock: for how long it is held without a refresh'
complete -c semlock -n "__fish_seen_subcommand_from run" -l environment -x -a 'local ci cloud container' -d 'of a task lock: where its owner runs (found out)'
complete -c semlock -n "__fish_seen_subcommand_from run" -l purpose -x -a 'interactive automated emergency' -d 'of a task lock: what it is for'
complete -c semlock -n "__fish_seen_subcommand_from run" -l allow -x -a 'SAME_USER HIGHER_PRIVILEGE EMERGENCY_OVERRIDE' -d 'of a task lock: take it from its holder for this reason, if the decision tree has it; several with commas between them'
complete -c semlock -n "__fish_seen_subcommand_from run" -l auto-refresh -d 'refresh a lock that goes by age while the command runs, which is the default'
complete -c semlock -n "__fish_seen_subcommand_from run" -l no-auto-refresh -d "don't: others may take it when its time is over, though the command runs"
complete -c semlock -n "__fish_seen_subcommand_from run" -s E -l on-conflict-exit -x -d "the exit code when the lock can't be acquired (1)"
complete -c semlock -n "__fish_seen_subcommand_from run" -l follow -x -a 'self child' -d 'what the lock ends with if semlock is killed: the command (child, the default) or semlock (self, the default on Windows)'
complete -c semlock -n "__fish_seen_subcommand_from run" -l on-lost -x -a 'end warn' -d "what happens to the command before a lock on an engine may be another's: it is ended by TERM and then KILL (end), or goes on (warn)"
complete -c semlock -n "__fish_seen_subcommand_from run" -s j -l json -d 'write JSON to standard error, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from run" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from run" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from run" -F
complete -c semlock -n "__fish_seen_subcommand_from run; and contains -- -- (commandline -opc)" -a '(__fish_complete_command)'
complete -c semlock -n "__fish_seen_subcommand_from flock" -s s -l shared -d 'a lock that is shared with other readers'
complete -c semlock -n "__fish_seen_subcommand_from flock" -s x -s e -l exclusive -d 'a lock of one holder, which is the default'
complete -c semlock -n "__fish_seen_subcommand_from flock" -s u -l unlock -d 'unlock the open file'
complete -c semlock -n "__fish_seen_subcommand_from flock" -s n -l nb -l nonblock -d "don't wait"
complete -c semlock -n "__fish_seen_subcommand_from flock" -s w -l wait -l timeout -x -d 'wait so long at most; 0 is the same as -n'
complete -c semlock -n "__fish_seen_subcommand_from flock" -s E -l conflict-exit-code -x -d "the exit code when the lock can't be acquired (1)"
complete -c semlock -n "__fish_seen_subcommand_from flock" -s o -l close -d "the command doesn't inherit the descriptor of the lock"
complete -c semlock -n "__fish_seen_subcommand_from flock" -s c -l command -d 'behind the file: run one line by the shell'
complete -c semlock -n "__fish_seen_subcommand_from flock" -s F -l no-fork -d 'become the command, instead of waiting for it'
complete -c semlock -n "__fish_seen_subcommand_from flock" -l verbose -d 'say how long it took, or who holds it'
complete -c semlock -n "__fish_seen_subcommand_from flock" -s V -l version -d 'show the version'
complete -c semlock -n "__fish_seen_subcommand_from flock" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from flock" -F
complete -c semlock -n "__fish_seen_subcommand_from try" -s m -l tag -x -d 'say in the lock what it is held for'
complete -c semlock -n "__fish_seen_subcommand_from try" -l owner-pid -x -d 'the process that owns the lock (the shell or program that called semlock)'
complete -c semlock -n "__fish_seen_subcommand_from try" -l durability -x -a 'safe full data none' -d 'what a power cut may do to the lock (safe; full for other systems than semlock)'
complete -c semlock -n "__fish_seen_subcommand_from try" -l make-dirs -d "make missing directories of the lock's path"
complete -c semlock -n "__fish_seen_subcommand_from try" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d 'the lock system of the file (semlock)'
complete -c semlock -n "__fish_seen_subcommand_from try" -l stale -x -d 'the age from which a lock may be taken, for systems that go by age; 0: never'
complete -c semlock -n "__fish_seen_subcommand_from try" -l owner -x -d 'of a task lock: its owner, in words'
complete -c semlock -n "__fish_seen_subcommand_from try" -l user -x -d 'of a task lock: its owner is this user'
complete -c semlock -n "__fish_seen_subcommand_from try" -l session -x -d 'of a task lock: in this session of the user'
complete -c semlock -n "__fish_seen_subcommand_from try" -l token-file -x -d 'of a task lock: its owner has the token in this file; the record has a digest'
complete -c semlock -n "__fish_seen_subcommand_from try" -l ttl -x -d 'of a task lock: for how long it is held without a refresh'
complete -c semlock -n "__fish_seen_subcommand_from try" -l environment -x -a 'local ci cloud container' -d 'of a task lock: where its owner runs (found out)'
complete -c semlock -n "__fish_seen_subcommand_from try" -l purpose -x -a 'interactive automated emergency' -d 'of a task lock: what it is for'
complete -c semlock -n "__fish_seen_subcommand_from try" -l allow -x -a 'SAME_USER HIGHER_PRIVILEGE EMERGENCY_OVERRIDE' -d 'of a task lock: take it from its holder for this reason, if the decision tree has it; several with commas between them'
complete -c semlock -n "__fish_seen_subcommand_from try" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from try" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from try" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from try" -F
complete -c semlock -n "__fish_seen_subcommand_from acquire" -s t -s w -l wait -l timeout -x -d 'wait so long at most: seconds, or 500ms, 1m, 2h; 0 tries once (forever)'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -s n -l no-wait -d "don't wait: the same as --timeout 0"
complete -c semlock -n "__fish_seen_subcommand_from acquire" -s m -l tag -x -d 'say in the lock what it is held for'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l owner-pid -x -d 'the process that owns the lock (the shell or program that called semlock)'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l durability -x -a 'safe full data none' -d 'what a power cut may do to the lock (safe; full for other systems than semlock)'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l make-dirs -d "make missing directories of the lock's path"
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d 'the lock system of the file (semlock)'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l stale -x -d 'the age from which a lock may be taken, for systems that go by age; 0: never'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l owner -x -d 'of a task lock: its owner, in words'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l user -x -d 'of a task lock: its owner is this user'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l session -x -d 'of a task lock: in this session of the user'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l token-file -x -d 'of a task lock: its owner has the token in this file; the record has a digest'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l ttl -x -d 'of a task lock: for how long it is held without a refresh'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l environment -x -a 'local ci cloud container' -d 'of a task lock: where its owner runs (found out)'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l purpose -x -a 'interactive automated emergency' -d 'of a task lock: what it is for'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -l allow -x -a 'SAME_USER HIGHER_PRIVILEGE EMERGENCY_OVERRIDE' -d 'of a task lock: take it from its holder for this reason, if the decision tree has it; several with commas between them'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from acquire" -F
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l allow -x -a 'SAME_USER HIGHER_PRIVILEGE EMERGENCY_OVERRIDE' -d 'of a task lock: take it from its holder for this reason, if the decision tree has it; several with commas between them'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -s f -l force -d 'take it if its time is over or its holder is dead, which is done anyway'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l emergency -d 'the same as --purpose emergency --allow EMERGENCY_OVERRIDE'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -s t -s w -l wait -l timeout -x -d 'wait so long at most for a reason: seconds, 500ms or forever (0: once)'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -s m -l tag -x -d 'say in the lock what it is held for'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l owner-pid -x -d 'the process that owns the lock (the shell or program that called semlock)'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l durability -x -a 'safe full data none' -d 'what a power cut may do to the lock (safe; full for other systems than semlock)'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l make-dirs -d "make missing directories of the lock's path"
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l dialect -x -a 'task' -d 'the lock system'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l owner -x -d 'of a task lock: its owner, in words'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l user -x -d 'of a task lock: its owner is this user'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l session -x -d 'of a task lock: in this session of the user'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l token-file -x -d 'of a task lock: its owner has the token in this file; the record has a digest'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l ttl -x -d 'of a task lock: for how long it is held without a refresh'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l environment -x -a 'local ci cloud container' -d 'of a task lock: where its owner runs (found out)'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -l purpose -x -a 'interactive automated emergency' -d 'of a task lock: what it is for'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from reclaim" -F
complete -c semlock -n "__fish_seen_subcommand_from release" -l owner-pid -x -d 'the process that owns the lock (the shell or program that called semlock)'
complete -c semlock -n "__fish_seen_subcommand_from release" -s f -l force -d 'release it even if another process holds it'
complete -c semlock -n "__fish_seen_subcommand_from release" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d "the lock system by which to judge (auto: read any record, judge by semlock's rules)"
complete -c semlock -n "__fish_seen_subcommand_from release" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from release" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from release" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from release" -F
complete -c semlock -n "__fish_seen_subcommand_from refresh" -l owner-pid -x -d 'the process that owns the lock (the shell or program that called semlock)'
complete -c semlock -n "__fish_seen_subcommand_from refresh" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d "the lock system by which to judge (auto: read any record, judge by semlock's rules)"
complete -c semlock -n "__fish_seen_subcommand_from refresh" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from refresh" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from refresh" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from refresh" -F
complete -c semlock -n "__fish_seen_subcommand_from status" -s v -l verbose -d 'all that is known, in lines'
complete -c semlock -n "__fish_seen_subcommand_from status" -l porcelain -d "lines for programs that read sema's format; they stay as they are"
complete -c semlock -n "__fish_seen_subcommand_from status" -l color -x -a 'auto always never' -d 'colours: on a terminal (auto, and never if NO_COLOR is set), or as said'
complete -c semlock -n "__fish_seen_subcommand_from status" -l kernel -d "the kernel's lock on the file (flock), as flock(1) and filelock take it"
complete -c semlock -n "__fish_seen_subcommand_from status" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d "the lock system by which to judge (auto: read any record, judge by semlock's rules)"
complete -c semlock -n "__fish_seen_subcommand_from status" -l stale -x -d 'the age from which a lock may be taken, for systems that go by age; 0: never'
complete -c semlock -n "__fish_seen_subcommand_from status" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from status" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from status" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from status" -F
complete -c semlock -n "__fish_seen_subcommand_from wait" -s t -s w -l wait -l timeout -x -d 'wait so long at most: seconds, or 500ms, 1m, 2h; 0 tries once (forever)'
complete -c semlock -n "__fish_seen_subcommand_from wait" -s n -l no-wait -d "don't wait: the same as --timeout 0"
complete -c semlock -n "__fish_seen_subcommand_from wait" -l kernel -d "the kernel's lock on the file (flock), as flock(1) and filelock take it"
complete -c semlock -n "__fish_seen_subcommand_from wait" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d "the lock system by which to judge (auto: read any record, judge by semlock's rules)"
complete -c semlock -n "__fish_seen_subcommand_from wait" -l stale -x -d 'the age from which a lock may be taken, for systems that go by age; 0: never'
complete -c semlock -n "__fish_seen_subcommand_from wait" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from wait" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from wait" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from wait" -F
complete -c semlock -n "__fish_seen_subcommand_from list" -s a -l all -d 'files too that are no record and not named *.lock'
complete -c semlock -n "__fish_seen_subcommand_from list" -l color -x -a 'auto always never' -d 'colours: on a terminal (auto, and never if NO_COLOR is set), or as said'
complete -c semlock -n "__fish_seen_subcommand_from list" -l kernel -d "the kernel's lock on the file (flock), as flock(1) and filelock take it"
complete -c semlock -n "__fish_seen_subcommand_from list" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d "the lock system by which to judge (auto: read any record, judge by semlock's rules)"
complete -c semlock -n "__fish_seen_subcommand_from list" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from list" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from list" -F
complete -c semlock -n "__fish_seen_subcommand_from clean" -s y -l yes -d 'remove it, without a question'
complete -c semlock -n "__fish_seen_subcommand_from clean" -s n -l dry-run -d 'only say what would be removed and why'
complete -c semlock -n "__fish_seen_subcommand_from clean" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d "the lock system by which to judge (auto: read any record, judge by semlock's rules)"
complete -c semlock -n "__fish_seen_subcommand_from clean" -l stale -x -d 'the age from which a lock may be taken, for systems that go by age; 0: never'
complete -c semlock -n "__fish_seen_subcommand_from clean" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from clean" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from clean" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from clean" -F
complete -c semlock -n "__fish_seen_subcommand_from break" -s y -l yes -d "don't ask"
complete -c semlock -n "__fish_seen_subcommand_from break" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d "the lock system by which to judge (auto: read any record, judge by semlock's rules)"
complete -c semlock -n "__fish_seen_subcommand_from break" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from break" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from break" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from break" -F
complete -c semlock -n "__fish_seen_subcommand_from migrate" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from migrate" -s q -l quiet -d 'say nothing but errors'
complete -c semlock -n "__fish_seen_subcommand_from migrate" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from migrate" -F
complete -c semlock -n "__fish_seen_subcommand_from doctor" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from doctor" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from doctor" -a '(__fish_complete_directories)'
complete -c semlock -n "__fish_seen_subcommand_from watch" -l once -d 'write the table once'
complete -c semlock -n "__fish_seen_subcommand_from watch" -l interval -x -d 'look so often: seconds, or 500ms, 1m (1)'
complete -c semlock -n "__fish_seen_subcommand_from watch" -l color -x -a 'auto always never' -d 'colours: on a terminal (auto, and never if NO_COLOR is set), or as said'
complete -c semlock -n "__fish_seen_subcommand_from watch" -l dialect -x -a 'auto semlock sema semats feature sidecar task' -d "the lock system by which to judge (auto: read any record, judge by semlock's rules)"
complete -c semlock -n "__fish_seen_subcommand_from watch" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from watch" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from watch" -a '(__fish_complete_directories)'
complete -c semlock -n "__fish_seen_subcommand_from timeline" -s o -l output -x -d 'the picture: .svg, .html or .json; never the trace itself'
complete -c semlock -n "__fish_seen_subcommand_from timeline" -s j -l json -d 'write JSON, one object on a line'
complete -c semlock -n "__fish_seen_subcommand_from timeline" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from timeline" -F
complete -c semlock -n "__fish_seen_subcommand_from completion" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from completion" -a 'bash zsh fish'
complete -c semlock -n "__fish_seen_subcommand_from help" -s h -l help -d 'show this help'
complete -c semlock -n "__fish_seen_subcommand_from help" -a 'run flock try acquire reclaim release refresh status wait list clean break migrate doctor watch timeline completion help topics exit-codes environment engines record'
