"""What a map costs: time and memory, as the evaluation measured them."""

from torch import Tensor

from gamlens.metrics.metric import MeasuredColumns, MetricInput, MetricValues, StoredColumns


def milliseconds(seconds: Tensor) -> Tensor:
    """The time that making the map took, per image, in milliseconds: (N,) -> (N,). NaN where it was not measured."""
    return 1000 * seconds.double()


def megabytes(peak_bytes: Tensor) -> Tensor:
    """The memory that making the map took at its peak, per image, in MB of 2**20 bytes: (N,) -> (N,). NaN where it was
    not measured.
    """
    return peak_bytes.double() / 2**20


def measure_time(given: MetricInput) -> MeasuredColumns:
    return {"seconds": None if given.seconds is None else given.seconds.double()}


def measure_memory(given: MetricInput) -> MeasuredColumns:
    return {"peak_bytes": None if given.peak_bytes is None else given.peak_bytes.double()}


def time_value(stored: StoredColumns) -> MetricValues:
    """Milliseconds per image. Items that were not timed are no gap in the results, so none is called left out."""
    return MetricValues(milliseconds(stored.columns["seconds"]))


def memory_value(stored: StoredColumns) -> MetricValues:
    """MB per image; items of which it was not measured as in `time_value`."""
    return MetricValues(megabytes(stored.columns["peak_bytes"]))
