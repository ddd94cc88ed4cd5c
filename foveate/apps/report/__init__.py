"""Reports: one self-contained HTML page about runs, their metrics, their curves and where they look."""

from foveate.apps.report.runs import ReportRun
from foveate.apps.report.tables import FEW, RunComparison, compare_runs, count_examples, headlines, short_table
from foveate.apps.report.write import REPORT, write_report

__all__ = [
    "FEW",
    "REPORT",
    "ReportRun",
    "RunComparison",
    "compare_runs",
    "count_examples",
    "headlines",
    "short_table",
    "write_report",
]
