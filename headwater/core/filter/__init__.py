"""The filter language: choose records by their columns, as the `where` of SQL does.

    price > 10 and symbol in ('HW', 'WH')
    key like 'customer-%' and timestamp >= '2026-01-31T12:00Z'
    value.customer.id = 7 or header('kind') is null

A text is parsed once, bound to the schema of each topic that it is asked of, and evaluated on whole record batches by
Arrow, or on one record. A filter can only compare: it reaches no file, calls no function of the user's, and takes no
longer than a look at each record (regular expressions are RE2's, which never backtrack).
"""

from headwater.core.filter.bound import BoundFilter
from headwater.core.filter.parsed import LONGEST_SENT, Filter

__all__ = ["LONGEST_SENT", "BoundFilter", "Filter"]
