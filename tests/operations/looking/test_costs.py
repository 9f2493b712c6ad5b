"""What a replay costs, in words."""

from __future__ import annotations

from orchestration.operations.looking.costs import Rate, as_size, time_of
from tests.operations.builders import release


def test_a_plan_says_whose_rate_it_goes_by() -> None:
    def said(of: str, *, throttled: bool = False) -> str:
        return time_of(Rate(records_per_s=50.0, of=of, throttled=throttled), release().name, 100)

    assert said(release().name) == "about 2 s at 50 records/s"
    assert said("a.v9") == "about 2 s at 50 records/s, measured on a.v9"
    assert said("a.v9", throttled=True) == "about 2 s at 50 records/s, limited by --max-records-per-batch"
    assert time_of(None, "a.v9", 5) == "duration unknown, because its rate was never measured"
    assert [as_size(n) for n in (5, 2048, 3 << 20, 5 << 30)] == ["5 B", "2.0 KiB", "3.0 MiB", "5.0 GiB"]
