"""The `onepass` command, before onepass is imported: what importing it refuses is one line here, too."""

import sys


def main() -> None:
    """The entry point: exit code 2 where a variable of the environment (ONEPASS_ISA, say) is wrong, 1 for the rest."""
    try:
        from onepass.cli import main as command
    except (ImportError, ValueError) as error:
        print(f"onepass: error: {' '.join(str(error).removeprefix('onepass: ').split())}", file=sys.stderr)
        raise SystemExit(2 if "ONEPASS_" in str(error) else 1) from None
    except KeyboardInterrupt:
        print("onepass: error: interrupted", file=sys.stderr)
        raise SystemExit(1) from None
    command()
