"""Studies in which people rate what models write and where they look."""

from foveate.rating.rating_store import RatingStore
from foveate.rating.study import Study, make_study
from foveate.rating.study_results import StudyResults, read_results
from foveate.rating.table_study import TableRatings, table_ratings

__all__ = ["RatingStore", "Study", "StudyResults", "TableRatings", "make_study", "read_results", "table_ratings"]
