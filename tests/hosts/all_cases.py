"""All cases, in the order of the table in docs/hosts_conformance.md."""
import cases  # noqa: F401
import restart_cases  # noqa: F401
from registry import CASES

__all__ = ["CASES"]
