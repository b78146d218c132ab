"""Runs judges: `python -m scripts.tools.judges [--long] [--list] [NAME...]`; see scripts/judges."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Iterator, Sequence

from scripts.tools.judges import FIELDS, CannotRunError, Judge, Verdict, planted

OK, VIOLATION, CANNOT, LATER = "ok", "violation", "cannot run here", "only with --long"


def all_judges() -> Iterator[tuple[str, Judge]]:
    """Yield each judge with its full name, FIELD.NAME."""
    for field in FIELDS:
        for judge in importlib.import_module(f"scripts.tools.judges.{field}").JUDGES:
            yield f"{field}.{judge.name}", judge


def chosen(names: Sequence[str]) -> list[tuple[str, Judge]]:
    """Return the judges of the given names, of judges or fields; all of them without a name.

    Raises:
        SystemExit: a name is unknown.
    """
    every = list(all_judges())
    unknown = [name for name in names if not any(_matches(name, full) for full, _ in every)]
    if unknown:
        known = ", ".join([*FIELDS, *(full for full, _ in every)])
        sys.exit(f"unknown judge {unknown[0]!r}; known are {known}")
    return [(full, judge) for full, judge in every if not names or any(_matches(name, full) for name in names)]


def _matches(name: str, full: str) -> bool:
    return name == full or name in full.split(".")


def run_judge(judge: Judge) -> tuple[str, str, Verdict]:
    """Return the outcome, the tool with its version (or the reason why it cannot run), and the verdict."""
    try:
        version = judge.version()
        verdict = judge.judge()
    except CannotRunError as error:
        return CANNOT, str(error), Verdict()
    except Exception as error:  # the judge could not finish, so that nothing is known to be right
        return VIOLATION, "", Verdict([f"the judge failed with {type(error).__name__}: {error}"])
    return VIOLATION if verdict.violations else OK, version, verdict


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the judges that the arguments name; return 1 if one found a violation, else 0."""
    parser = argparse.ArgumentParser(prog="scripts/judges", description="Run judges from outside.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="a field or a judge; all of them without a name")
    parser.add_argument("--long", action="store_true", help="also those that take many minutes")
    parser.add_argument("--list", action="store_true", help="only list the judges")
    parser.add_argument("--planted", action="store_true", help="plant faults in a copy, which their judges must find")
    options = parser.parse_args(arguments)
    if options.planted:
        return planted.main(options.names)
    found = dict.fromkeys((OK, VIOLATION, CANNOT, LATER), 0)
    for full, judge in chosen(options.names):
        if options.list:
            print(f"{full:<28} {judge.checks}{' (with --long)' if judge.long else ''}")
            continue
        start = time.monotonic()
        outcome, about, verdict = (LATER, "", Verdict()) if judge.long and not options.long else run_judge(judge)
        found[outcome] += 1
        told = "; ".join(part for part in (about, verdict.seen, judge.checks) if part)
        print(f"{outcome:<16} {full:<28} {time.monotonic() - start:5.1f} s  {told}", flush=True)
        for line in verdict.violations:
            print(f"    {line}")
        for line in verdict.excepted:
            print(f"    excepted: {line}")
    if not options.list:
        print(", ".join(f"{count} {outcome}" for outcome, count in found.items()))
    return 1 if found[VIOLATION] else 0


if __name__ == "__main__":
    sys.exit(main())
