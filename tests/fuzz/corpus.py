"""Inputs of the fuzzer that are kept: a file for each target, with one input in hexadecimal digits a line."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
MOST = 60  # inputs of a target, so that repeating them stays cheap


def read_corpus(target: str) -> list[bytes]:
    path = FOLDER / f"{target}.txt"
    return [bytes.fromhex(line) for line in path.read_text(encoding="ascii").split()] if path.exists() else []


def write_corpus(target: str, inputs: list[bytes]) -> None:
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target}.txt").write_text("".join(f"{data.hex()}\n" for data in inputs), encoding="ascii")
