"""Rows: results as plain dictionaries, which become a data frame where somebody wants one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas


class Rows(list[dict[str, Any]]):
    """A list of dictionaries that have the same keys.

    >>> rows = Rows([{"client_id": "client-0", "epsilon": 1.5}])
    >>> rows[0]["epsilon"]
    1.5
    """

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with a row for each row and a column for each key.

        Raises:
            ImportError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("pandas is not installed; pip install pandas, or use the rows as they are.") from error
        return pd.DataFrame.from_records(self)
