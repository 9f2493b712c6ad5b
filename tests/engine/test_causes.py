"""The line that names the cause, taken from what Spark, Python workers and the platform raise."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]

from pipelines.apps import word_count
from pipelines.engine import trial
from pipelines.engine.causes import cause, failed_at, is_lost_contact, jvm_ended
from pipelines.errors import Refused, SwitchyardError
from pipelines.settings import Settings

WORKER = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark/worker.py", line 1985, in main
    process()
  File "/state/code/0202.zip/app_0202/helper.py", line 6, in price
    raise ValueError(f"{text} is no price")
ValueError: x is no price
"""
CHAINED = """Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure: Lost task 0.0
 (TID 4): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
decimal.InvalidOperation: [<class 'decimal.ConversionSyntax'>]

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "helper.py", line 6, in price
    raise KeyError
KeyError

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
"""
OUT_OF_BOUNDS = """An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/pyspark/sql/pandas/serializers.py", line 260, in arrow_to_pandas
    s = arrow_column.to_pandas(**pandas_options)
  File "pyarrow/array.pxi", line 1090, in pyarrow.lib._PandasConvertible.to_pandas
  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status
pyarrow.lib.ArrowInvalid: Casting from timestamp[us, tz=UTC] to timestamp[ns] would result in out of bounds timestamp: 32472144000000000
"""
SPARK = """[USER_RAISED_EXCEPTION] this word is poison SQLSTATE: P0001

JVM stacktrace:
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.raiseError(QueryExecutionErrors.scala:2858)
\tat org.apache.spark.sql.errors.QueryExecutionErrors.raiseError(QueryExecutionErrors.scala)
"""


UNRESOLVED = """[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. SQLSTATE: 42703;
'Project [k#102, 'nope AS x#115]
+- Project [k#102, a#103L]
"""
FAILED = """[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012
== DataFrame ==
"__truediv__" was called from
/state/code/0202.zip/app_0202/prices.py:7

"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("short"), "short"),
        (ValueError(), "ValueError"),
        (Refused("what is wrong", fix="what to do"), "what is wrong"),
        (RuntimeError(SPARK), "[USER_RAISED_EXCEPTION] this word is poison SQLSTATE: P0001 | JVM stacktrace:"),
        (
            RuntimeError(WORKER),
            "An exception was thrown from the Python worker. | ValueError: x is no price (helper.py, line 6, in price)",
        ),
        (
            RuntimeError(CHAINED),
            "Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure: Lost task 0.0 "
            "| decimal.InvalidOperation: [<class 'decimal.ConversionSyntax'>] (worker.py, line 1, in main) "
            "| KeyError (helper.py, line 6, in price)",
        ),
        (
            RuntimeError(OUT_OF_BOUNDS),
            "An exception was thrown from the Python worker. | pyarrow.lib.ArrowInvalid: Casting from timestamp[us, tz=UTC] to "
            "timestamp[ns] would result in out of bounds timestamp: 32472144000000000. pandas has no time before 1677 or after "
            "2262. Give Python numbers: `time_us` for event_time, `unix_micros` for others",
        ),
        (RuntimeError(UNRESOLVED), "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column with name `nope` cannot be resolved. SQLSTATE: 42703"),
        (RuntimeError(FAILED), "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012 (prices.py, line 7)"),
        (RuntimeError("Traceback (most recent call last):\n  File 'a'\nKeyError: 'b'\n"), "KeyError: 'b'"),
    ],
)  # fmt: skip
def test_the_cause_is_told(error: Exception, said: str) -> None:
    assert cause(error) == said


class Caused(RuntimeError):
    """An error as PySpark makes it of one of the JVM's: with its cause, which its text leaves out."""

    def __init__(self, text: str, cause: Exception | None = None) -> None:
        super().__init__(text)
        self._cause = cause


def test_what_a_worker_has_raised_is_told_where_spark_says_only_that_it_has_crashed() -> None:
    crashed = "TransformWithStateInPandas driver worker exited unexpectedly (crashed)"
    error = Caused(f"query 1 terminated: {crashed}", Caused(crashed, Caused(CHAINED)))
    first = "decimal.InvalidOperation: [<class 'decimal.ConversionSyntax'>] (worker.py, line 1, in main)"
    assert cause(error) == f"{first} | KeyError (helper.py, line 6, in price)"
    found = failed_at(error)
    assert found is not None and f"{found.raised} ({found.place})" == first
    without = Caused(crashed, Caused("the process was killed"))
    assert (cause(without), failed_at(without)) == (crashed, None)


def test_a_line_of_a_compiled_package_is_not_named_as_the_author_s() -> None:
    assert failed_at(RuntimeError(OUT_OF_BOUNDS)) is None
    assert "error.pxi" not in cause(RuntimeError(OUT_OF_BOUNDS))


def test_a_line_of_the_platform_is_not_named_as_the_author_s() -> None:
    frames = f'  File "{trial.__file__}", line 62, in discard\n    rows.count()\n'
    error = f"no such word\nTraceback (most recent call last):\n{frames}ValueError: x is no price\n"
    assert cause(RuntimeError(error)) == "no such word | ValueError: x is no price"
    app = f'  File "{word_count.__file__}", line 9, in counted\n    return 1 / 0\n'
    error = f"Traceback (most recent call last):\n{app}{frames}ZeroDivisionError: division by zero\n"
    assert cause(RuntimeError(error)) == "ZeroDivisionError: division by zero (word_count.py, line 9, in counted)"


def test_a_long_error_is_cut() -> None:
    assert len(cause(ValueError("x" * 10_000))) == 1500
    assert cause(ValueError("a\nb\nc\nd\ne"), lines=2) == "a | b"
    found = failed_at(RuntimeError(WORKER.replace("x is", "x" * 10_000)))
    assert found is not None and len(found.raised) == 1500


def test_a_jvm_that_answers_no_more_is_told_from_one_that_answers_with_an_error() -> None:
    assert is_lost_contact(ConnectionRefusedError(111, "Connection refused"))
    assert is_lost_contact(Py4JNetworkError("Answer from Java side is empty"))
    assert is_lost_contact(Py4JError("py4j.reflection does not exist in the JVM"))
    # its `str` would call the JVM
    assert not is_lost_contact(Py4JJavaError.__new__(Py4JJavaError))
    assert not is_lost_contact(SwitchyardError("no"))


@pytest.mark.parametrize(
    ("code", "said", "fix"),
    [
        (52, "ended with exit code 52, most likely", "larger SWITCHYARD_DRIVER_HEAP_MB (1024)"),
        (-9, "was ended by signal 9; if nobody sent it", "smaller SWITCHYARD_DRIVER_HEAP_MB (1024)"),
        (137, "was ended by signal 9; if nobody sent it", "switchyard start sums.v1"),
        (143, "was ended by signal 15", "switchyard start sums.v1"),
    ],
)
def test_what_to_do_about_a_jvm_depends_on_how_it_ended(code: int, said: str, fix: str) -> None:
    found = jvm_ended("sums.v1", code, Settings())
    assert said in found.what and fix in found.fix
    assert ("short of memory" in found.what) == ("signal 9" in said)
