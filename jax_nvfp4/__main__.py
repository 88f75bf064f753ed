"""`python -m jax_nvfp4 doctor`: the command line of the package."""

from __future__ import annotations

import argparse
import sys

from jax_nvfp4 import doctor


def main() -> int:
    """Run the command named on the command line and return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m jax_nvfp4", description="NVFP4 training for JAX")
    commands = parser.add_subparsers(metavar="command", required=True)
    command = commands.add_parser(
        "doctor", help="check this installation on this machine; exit status 1 if anything is wrong"
    )
    command.set_defaults(run=doctor.run)
    return parser.parse_args().run()


if __name__ == "__main__":
    sys.exit(main())
