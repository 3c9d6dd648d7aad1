"""The engine from Python: start jobs, follow them, read their results.

Every call runs the ``gristmill`` command as a child process, so a job behaves as on the command line, keeps running
when the interpreter that started it ends, and can be attached to again.

``gristmill`` imports each module when one of its names is used.
"""
