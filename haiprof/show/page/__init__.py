"""The report of a recorded run as one page: a document of sections, which the page draws."""
