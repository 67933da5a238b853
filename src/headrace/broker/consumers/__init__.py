"""Consumer groups: their settings, their members, and where each group is in each queue.

``groups`` and ``offsets`` are what lasts, ``clients``, ``subscription`` and ``locks`` what heartbeats tell;
``held_pulls`` are pulls that wait for a message. ``sql92`` compiles filters over properties (``sql92_evaluation``).
``group_services`` builds all of it, ``stored_groups`` checks its files in a store that nobody runs.

Must not know the log: a group's offsets are numbers that its consumers commit. Ref: docs/formats/config-files.md.
"""
