"""Studies in which people rate what models write and where they look."""

from foveate.lab.papers.rating.rating_store import RatingStore
from foveate.lab.papers.rating.study import Study, make_study
from foveate.lab.papers.rating.study_results import StudyResults, TableRatings, read_results, table_ratings

__all__ = ["RatingStore", "Study", "StudyResults", "TableRatings", "make_study", "read_results", "table_ratings"]
