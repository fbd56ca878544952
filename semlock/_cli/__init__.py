"""The command ``semlock``: each module here is a group of its verbs, or what they share.

``table`` says which verbs and options there are, and is the one home of that: the parser, the
help, the completions, the man page and the reference in ``docs/cli.md`` are made from it.  A
new verb is one entry there and one function that takes ``Options`` and gives an exit code.
"""
