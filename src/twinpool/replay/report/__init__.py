"""The report of a sweep: one page of HTML with its charts; runs and measures nothing."""
