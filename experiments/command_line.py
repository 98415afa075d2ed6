"""What the commands of this package share: help, errors in one sentence, exit codes."""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Callable

from .commands import RunError
from .process import explain

INTERRUPTED = 130  # exit code of Ctrl-C


def parser_of(command: str, doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help is the module's docstring, examples and all."""
    return argparse.ArgumentParser(
        prog=f"python -m experiments.{command}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def catch(main: Callable[..., int]) -> Callable[..., int]:
    """Errors of a user's input as one sentence on stderr and exit code 1; Ctrl-C gives 130."""

    @functools.wraps(main)
    def wrapped(argv: list[str] | None = None) -> int:
        try:
            return main(argv)
        except RunError as error:
            print(f"error: {error}", file=sys.stderr)
        except BrokenPipeError:  # as by `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            print(f"error: {explain(error)}", file=sys.stderr)
        except KeyboardInterrupt:
            print("\ninterrupted", file=sys.stderr)
            return INTERRUPTED
        return 1

    return wrapped
