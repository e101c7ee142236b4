"""The data of a recording as frozen tables of columns."""
