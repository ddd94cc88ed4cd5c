"""Reports: one self-contained HTML page about runs, their numbers, their curves and where they look."""

from foveate.report.measures import MEASURES, Measure
from foveate.report.runs import ReportRun
from foveate.report.table import headlines, short_table
from foveate.report.tasks import SECTIONS, Drawn, Section
from foveate.report.write import REPORT, write_report

__all__ = [
    "MEASURES",
    "REPORT",
    "SECTIONS",
    "Drawn",
    "Measure",
    "ReportRun",
    "Section",
    "headlines",
    "short_table",
    "write_report",
]
