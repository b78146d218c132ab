"""Programs behind the scripts of this folder, and the root of the checkout."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
