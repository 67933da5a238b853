"""The ``headrace`` program: one file per command.

``program`` finds the command and turns our errors into one line and an exit code; ``options`` makes a flag of every
setting, ``output`` draws bars and tables. The commands are ``serve``, ``registry``, ``config``, ``doctor`` (which asks
``checkup``, ``lookup_checkup``, ``registry_checkup`` and ``statsd_checkup`` for ``findings``, and these some ports by
``local_http``), ``store`` (and ``store_import``) and ``job``. They read settings and call the rest of the package;
nothing imports this one.
"""

from headrace.cli.program import main

__all__ = ["main"]
