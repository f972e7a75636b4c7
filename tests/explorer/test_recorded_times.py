"""Times are stored outside the data, so that runs differ in them alone."""

from dataclasses import replace

import numpy as np

from nbmem.views.explorer.data import explorer_data
from nbmem.views.explorer.output import US, explorer_output, split_times, unpacked
from tests.views import sample_reports as sample


def slower(report, factor):
    """Return the report of the same run on a slower machine."""
    moments = report.timeline
    return replace(
        report,
        duration_ns=report.duration_ns * factor,
        timeline=replace(moments, t_ns=moments.t_ns * factor),
        phases=tuple(
            replace(row, t0_ns=row.t0_ns * factor, t1_ns=row.t1_ns * factor)
            for row in report.phases
        ),
    )


def test_two_runs_differ_in_their_times_alone():
    report = sample.cnn()
    first, second = explorer_output(report), explorer_output(slower(report, 3))
    assert first["data"] == second["data"]
    assert first["times"] != second["times"]


def test_times_are_microseconds_whose_sum_does_not_drift():
    report = sample.cnn()
    times = unpacked(explorer_output(report)["times"])
    assert (np.cumsum(times["t"]) == report.timeline.t_ns // US).all()
    assert times["phases"] == [
        [row["t0"] // US, row["t1"] // US] for row in explorer_data(report)["phases"]
    ]


def test_the_data_that_is_taken_apart_stays_as_it_was():
    data = explorer_data(sample.cnn())
    before = str(data)
    split_times(data)
    assert str(data) == before
