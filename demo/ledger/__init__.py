"""What consumers saw, judged by an independent recompute of the input.

Plain Python on confluent-kafka: no Spark, nothing of the apps' code, nothing of the platform's.
`python -m demo.ledger --help`.
"""

from __future__ import annotations

from demo.ledger.check import check_log, check_result
from demo.ledger.verify import Ledger

__all__ = ["Ledger", "check_log", "check_result"]
