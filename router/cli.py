"""`warmroute`: one command for everything, each part loaded only when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version

EXIT_FINE, EXIT_WRONG, EXIT_USAGE, EXIT_INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Command:
    """A row of the table.

    Attributes:
        module: Has `configure(parser)` and `run(args) -> exit code`.
        extra: The extra that the module needs, as in `pip install "warmroute[router]"`.
        summary: One line for `warmroute --help`.
    """

    module: str
    extra: str
    summary: str


COMMANDS: dict[str, Command] = {
    "demo": Command("router.tools.demo", "demo", "a local fleet under four policies, then a router to try"),
    "router": Command("router.supervisor", "router", "the load balancer"),
    "picker": Command("router.picker.command", "picker", "the same choice for a gateway, over ext_proc"),
    "agent": Command("replica.agent.command", "agent", "publishes what a vLLM replica has cached"),
    "simengine": Command("replica.simengine.command", "sim", "a simulated vLLM replica"),
    "simulate": Command("router.tools.simulate", "sim", "what each policy gives on a trace, in virtual time"),
    "chain": Command("router.tools.chain", "router", "what the router makes of a request: tokens and block hashes"),
    "explain": Command("router.tools.explain", "router", "why a request went where it went, or would go"),
    "drain": Command("router.tools.drain", "router", "have a replica take no new requests, or let it again"),
    "top": Command("router.tools.top", "top", "a router's fleet in a terminal, from second to second"),
    "doctor": Command("router.tools.doctor", "router", "what is wrong with a router or an engine, what to type"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        0 fine, 1 the thing checked is wrong, 2 usage or configuration, 130 interrupted (Ctrl-C).
    """
    try:
        code = _main(list(sys.argv[1:] if argv is None else argv))
        _flush_output()
        return code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # As of `warmroute chain ... | head`: whoever reads has read enough.
        _flush_output()
        return EXIT_FINE


def _main(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(_overview())
        return EXIT_FINE if words else EXIT_USAGE
    if words[0] in ("-V", "--version"):
        print(f"warmroute {version('warmroute')}")
        return EXIT_FINE
    command = COMMANDS.get(words[0])
    if command is None:
        print(f"warmroute: there is no command {words[0]!r}; it takes one of: {', '.join(COMMANDS)}", file=sys.stderr)
        return EXIT_USAGE
    return _run(words[0], command, words[1:])


def _run(name: str, command: Command, words: list[str]) -> int:
    try:
        module = importlib.import_module(command.module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in ("router", "replica", "loadtest"):
            raise
        print(
            f"warmroute {name}: the package {error.name!r} is missing; "
            f'install what this command needs: pip install "warmroute[{command.extra}]"',
            file=sys.stderr,
        )
        return EXIT_USAGE
    parser = argparse.ArgumentParser(
        prog=f"warmroute {name}", description=module.__doc__, formatter_class=_HelpFormatter, allow_abbrev=False
    )
    module.configure(parser)
    try:
        code: int = module.run(parser.parse_args(words))
        return code
    except Exception as error:
        # Both sides have their own error for usage and configuration: replica may not import router.errors.
        problems = getattr(error, "problems", None)
        if problems is None:
            raise
        for problem in problems:
            print(f"warmroute {name}: {problem}", file=sys.stderr)
        return EXIT_USAGE


def _flush_output() -> None:
    """Write out what is left; where nobody reads, drop it: the interpreter would try again, and exit with 120."""
    if sys.stdout is None:  # started with it closed
        return
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=32, width=110)


def _overview() -> str:
    rows = "\n".join(f"  {name:<10} {command.summary}" for name, command in COMMANDS.items())
    return (
        "usage: warmroute COMMAND [OPTIONS]\n\n"
        "Prefix-cache-aware load balancer for fleets of vLLM replicas.\n\n"
        f"{rows}\n\n"
        "`warmroute COMMAND --help` lists every option with its unit and default."
    )


if __name__ == "__main__":
    sys.exit(main())
