"""Recordings that begin from outside: ``vramscope run COMMAND``, ``vramscope attach PID`` and ``detach``.

A process that listens (``vramscope run --detached``, ``vramscope.allow_attach()``, or Python 3.14's remote
execution) has a Unix socket and a thread that waits for it; until a request comes, neither does anything.
The thread touches nothing of the program: a request is carried out on the main thread, between two calls of
torch.
"""
